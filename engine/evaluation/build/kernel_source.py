"""A kernel as plain text, which any host can build."""

from __future__ import annotations

from msgspec import Struct

from engine.devices.fact import DeviceFact
from engine.evaluation.build.compilers import flags_of
from engine.problem.spec import MODULES, DeviceKind, Language, ProblemSpec


class KernelSource(Struct, frozen=True, omit_defaults=True):
    """All data that a host needs to build one kernel for a device. On one host, equal values produce equal libraries.

    ``source``: the kernel's text in language ``language``. ``kind`` and ``arch``: the target device ("cuda", "sm_90a";
    "cpu", "x86_64").

    The builder inserts ``header`` before a ``.cpp`` or ``.cu`` kernel, and compiles the kernel with ``flags``. The
    builder executes a ``.py`` kernel together with ``problem``, the problem file's text. Fields that a language does
    not use are empty. Triton kernels have the language "py", because the builder treats Triton and Python kernels
    alike.
    """

    language: Language
    source: str
    kind: DeviceKind
    arch: str
    header: str = ""
    flags: tuple[str, ...] = ()
    problem: str = ""


def kernel_source(
    problem: ProblemSpec, header: str, language: Language, source: str, device: DeviceFact
) -> KernelSource:
    """Return the :class:`KernelSource` for a host with ``device``. ``header``: the C header derived from
    ``problem``.
    """
    if language in MODULES:
        return KernelSource("py", source, device.kind, device.arch, problem=problem.source)
    return KernelSource(language, source, device.kind, device.arch, header, flags_of(language))
