"""The compiler of a worker's host, and whether it can build kernels: an installed compiler may lack libraries."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from engine.devices.fact import DeviceFact
from engine.devices.nvml import as_text, driver
from engine.evaluation.build.build_cache import first_error
from engine.evaluation.build.compilers import NoCompiler, build, compiler_of
from engine.problem.spec import LANGUAGE_OF_DEVICE, Language

AGAIN_S = 15.0
"""Seconds after which the worker tries a failed compiler again, because a person may have repaired the host."""
_ANSWER_S = 20.0
_TRIALS: dict[str, str] = {
    "cpp": """\
#include <cmath>
#include <vector>
extern "C" __attribute__((visibility("default"))) void launch(float *x, long n) {
#pragma omp parallel for
    for (long i = 0; i < n; ++i) x[i] = std::sqrt(x[i]);
}
""",
    "cu": """\
__global__ void root(float *x, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) x[i] = sqrtf(x[i]);
}
extern "C" void launch(float *x, long n) { root<<<(n + 255) / 256, 256>>>(x, n); }
""",
}
"""Small kernels that every working compiler can build with the flags of real kernels."""

_log = logging.getLogger("kernel-tui")


class Toolchain:
    """The compiler for ``device``, tested with a small kernel when it is new or has failed."""

    def __init__(self, device: DeviceFact) -> None:
        self._device = device
        self._language: Language = LANGUAGE_OF_DEVICE[device.kind]
        self._tried: tuple[str, int, int] | None = None
        self._tried_at = 0.0
        self._failure = ""
        self._trial: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Test the compiler before the worker joins."""
        self.lacks()
        if self._trial is not None:
            await self._trial

    def lacks(self) -> str:
        """Return why this host cannot judge now, and what to type; "" if it can. Needs a running event loop."""
        if find_spec("torch") is None:
            return "PyTorch is not installed, so the judge cannot run references. Install it: pip install torch"
        try:
            compiler = compiler_of(self._language)
        except NoCompiler as error:
            return str(error)
        again = bool(self._failure) and time.monotonic() - self._tried_at > AGAIN_S
        if (self._trial is None or self._trial.done()) and (again or _identity(compiler) != self._tried):
            self._tried, self._tried_at = _identity(compiler), time.monotonic()
            self._trial = asyncio.get_running_loop().create_task(self._try(compiler))
        return self._failure

    async def _try(self, compiler: str) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="kernel-tui-trial-") as scratch:
                source = _TRIALS[self._language]
                _, report = await build(source, self._language, "", self._device.arch, Path(scratch))
            why = "" if report.ok else first_error(report)
        except (NoCompiler, OSError) as error:
            why = str(error)
        failure = ""
        if why:
            remedy = "Reinstall g++ on the host (Debian, Ubuntu: apt-get install --reinstall g++)"
            if self._language == "cu":
                remedy = (
                    f"Install g++ on the host, and a CUDA toolkit that supports {self._device.arch} (to choose another "
                    "toolkit, set NVCC to the path of its nvcc)"
                )
            why = why.rstrip(".")
            failure = (
                f"{compiler} cannot build a small kernel: {why}. {remedy}, then run on that host: kernel-tui doctor"
            )
        if failure and failure != self._failure:
            _log.warning("this host cannot judge: %s", failure)
        self._failure = failure


def software(device: DeviceFact) -> tuple[str, ...]:
    """Return the software that determines machine code and speed: compilers, PyTorch's build and the driver."""
    found = []
    languages: tuple[Language, ...] = ("cu", "cpp") if device.kind == "cuda" else ("cpp",)  # nvcc calls g++.
    for language in languages:
        with suppress(NoCompiler):
            found.append(compiler_version(compiler_of(language)))
    with suppress(metadata.PackageNotFoundError):
        found.append(f"PyTorch {metadata.version('torch')}")
    if device.kind == "cuda":
        nvml = driver()
        if version := nvml.ask(lambda: nvml.library.nvmlSystemGetDriverVersion()):
            found.append(f"driver {as_text(version)}")
    return tuple(dict.fromkeys(filter(None, found)))


def compiler_version(compiler: str) -> str:
    """Return a compiler's name and version, such as "g++ 12.2.0" or "nvcc 13.0.88"; "" if unknown."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_ANSWER_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    if release := re.search(r"\bV(\d+(?:\.\d+)+)", done.stdout):
        return f"nvcc {release[1]}"
    first = next(iter(done.stdout.splitlines()), "")
    versions = re.findall(r"\d+(?:\.\d+)+", first)
    name = "clang++" if "clang" in first else "g++" if "Free Software" in done.stdout else Path(compiler).name
    return f"{name} {versions[-1]}" if versions else ""


def _identity(compiler: str) -> tuple[str, int, int]:
    try:
        status = Path(compiler).resolve().stat()
    except OSError:
        return compiler, 0, 0
    return compiler, status.st_size, status.st_mtime_ns
