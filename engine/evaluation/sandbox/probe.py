"""Test which isolation layers this machine permits, for ``kernel-tui doctor`` and the first line of a session."""

from __future__ import annotations

import os

from msgspec import Struct

from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import Runner


class SandboxReport(Struct, frozen=True):
    """The available isolation. ``layers``: the active layers. ``missing``: the layers that this machine lacks."""

    layers: tuple[str, ...]
    missing: tuple[str, ...]


def probe() -> SandboxReport:
    """Start a runner without a kernel, and read which layers protect it. Raises ``RunnerEnded`` if the runner does not
    start.
    """
    with Runner("cpu", Limits(start_s=10.0), lambda: False) as runner, open(os.devnull) as nothing:  # noqa: PTH123
        layers = runner.isolate(nothing.fileno(), nothing.fileno())
    missing = tuple(name for name in ("namespaces", "Landlock", "seccomp") if not any(name in one for one in layers))
    return SandboxReport(tuple(layers), missing)


def describe(report: SandboxReport) -> str:
    text = "; ".join(report.layers) or "none"
    return f"{text} (missing: {', '.join(report.missing)})" if report.missing else text
