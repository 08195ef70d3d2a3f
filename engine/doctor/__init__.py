"""``kernel-tui doctor``: check whether this machine can run a search, and suggest a remedy for each problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.config.schema import Config
from engine.devices.hardware import DeviceReader
from engine.doctor import models, system, tools
from engine.doctor.cluster import cluster
from engine.doctor.finding import Finding, Level
from engine.doctor.tracking import tracking

__all__ = ["Finding", "Level", "run_checks"]


def run_checks(config: Config | None = None, on_check: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """Run every check, starting with the basic requirements of a search.

    The checks take several seconds and start child processes.

    If this machine lacks something that the config requires, the finding has the level ``fail``. Without a config, the
    defaults apply. ``run_checks`` calls ``on_check`` with each check's name before the check starts.
    """
    required = tools.needs_gpu(config)
    found = tools.gpus()
    devices = DeviceReader().discover()
    directory = config.sessions if config is not None else Path("sessions").absolute()
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", tools.python),
        ("c++ compiler", tools.cpp_compiler),
        ("nvidia gpu", lambda: tools.nvidia_driver(found, required)),
        ("nvcc", lambda: tools.nvcc(found, required)),
        ("gpu counters", lambda: tools.counters(found)),
        ("pytorch", lambda: tools.torch(found, required)),
        ("sandbox", lambda: tools.sandbox(config)),
        ("sqlite", system.sqlite),
        ("sessions", lambda: system.sessions(directory)),
        ("logout", system.logout),
        ("keys", lambda: system.keys(config)),
        ("models", lambda: models.retirements(config)),
        ("programs", lambda: models.programs(config)),
        ("languages", lambda: models.languages(config, devices)),
        ("proposers", lambda: models.coverage(config, found)),
        ("cluster", lambda: cluster(config)),
        ("tracking", lambda: tracking(config)),
        ("threads", lambda: system.threads(directory=directory)),
        ("terminal", system.terminal),
    )
    findings = []
    for name, check in checks:
        on_check(name)
        findings.append(_checked(name, check))
    return findings


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:  # an exception in one check must not hide the others
        return Finding(
            name,
            "warn",
            f"the check failed with an internal error: {type(error).__name__}: {error}",
            "please report this bug",
        )
