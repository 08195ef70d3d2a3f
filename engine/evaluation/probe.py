"""What isolation this machine allows, tried out: for ``kernel-tui doctor`` and for the first line of a session."""

from __future__ import annotations

from msgspec import Struct

from engine.evaluation.sandbox import Limits, Runner


class SandboxReport(Struct, frozen=True):
    """What isolation works here: ``layers`` in force, ``missing`` what could not be had."""

    layers: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing


def probe() -> SandboxReport:
    """Start an idle runner and read which layers it got. Raises ``RunnerEnded`` if none can be started."""
    with Runner("cpu", Limits(start_s=10.0), lambda: False) as runner:
        layers = runner.isolate_only()
    missing = tuple(name for name in ("namespaces", "Landlock", "seccomp") if not any(name in one for one in layers))
    return SandboxReport(tuple(layers), missing)


def describe(report: SandboxReport) -> str:
    text = "; ".join(report.layers) or "none"
    return f"{text} (missing: {', '.join(report.missing)})" if report.missing else text
