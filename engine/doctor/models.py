"""Check the models that a config names, and the languages of the config's proposers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, date, datetime

from engine.config.schema import CommandModel, Config, RemoteModel
from engine.devices.fact import DeviceFact
from engine.doctor.finding import Finding, Level
from engine.doctor.tools import Gpus
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import LANGUAGE_NAMES, ProblemSpec
from engine.proposers.coverage import MANUAL_TABLE, writers_of
from engine.proposers.llm.clients.command.program import ProgramMissing, check_program
from engine.proposers.llm.clients.retirement import retirement
from engine.search.problem_loader import cannot_run


def retirements(config: Config | None, today: date | None = None) -> Finding:
    """Report models that the provider has retired or will retire soon."""
    name = "models"
    today = today or datetime.now(UTC).date()
    remote = [] if config is None else [one for one in config.models if isinstance(one, RemoteModel)]
    if not remote:
        return Finding(name, "ok", "the search does not call remote models")
    told: list[str] = []
    level: Level = "ok"
    for model in dict.fromkeys(one.model for one in remote):
        if (last := retirement(model)) is None:
            continue
        if last <= today:
            told.append(f"the provider retired {model} on {last}")
            level = "fail"
        else:
            told.append(f"the provider retires {model} on {last}, in {(last - today).days} days")
            level = "warn" if level == "ok" else level
    if told:
        return Finding(
            name,
            level,
            "; ".join(told),
            "name a newer model in [[models]]; kernel-tui init writes a config with current models",
        )
    return Finding(name, "ok", "no retirement announced: " + ", ".join(dict.fromkeys(one.model for one in remote)))


def programs(config: Config | None) -> Finding:
    """Check that the programs of models with ``provider = "command"`` exist."""
    name = "programs"
    models = [] if config is None else [one for one in config.models if isinstance(one, CommandModel)]
    missing: list[str] = []
    for model in models:
        try:
            check_program(model)
        except ProgramMissing as error:
            missing.append(str(error))
    if missing:
        return Finding(
            name, "fail", "; ".join(missing), "correct the `command` key in [[models]], or install the program"
        )
    return Finding(name, "ok", ", ".join(model.command[0] for model in models) or "no model runs a local program")


def languages(config: Config | None, devices: Sequence[DeviceFact]) -> Finding:
    """Check that the config's device runs kernels in the languages that the config names."""
    name = "languages"
    wanted = config.search.languages if config is not None else ()
    if config is None or not wanted:
        return Finding(name, "ok", "the device's default" if config is not None else "no config given")
    if config.cluster is not None:
        return Finding(name, "ok", f"when a search starts, it checks whether the workers support {', '.join(wanted)}")
    on_gpu = _on_gpu(config, any(one.kind == "cuda" for one in devices))
    device = next((one for one in devices if one.kind == ("cuda" if on_gpu else "cpu")), None)
    if device is None:
        return Finding(name, "ok", f"cannot check {', '.join(wanted)} without the GPU that the config requires")
    if (why := cannot_run(wanted, device)) is not None:
        what, _, remedy = why.partition("; ")
        return Finding(name, "fail", what, remedy)
    return Finding(name, "ok", f"{', '.join(wanted)} run on {device.name}")


def _on_gpu(config: Config, has_gpu: bool) -> bool:
    """Return whether a search with ``config`` would run on a GPU."""
    devices = config.evaluation.devices
    return any(one.startswith("cuda") for one in devices) or (has_gpu and "cpu" not in devices)


def coverage(config: Config | None, gpus: Gpus) -> Finding:
    """Check that the config's proposers can write kernels for each problem."""
    name = "proposers"
    if config is None:
        return Finding(
            name,
            "ok",
            "no config given; to check the proposers of a config, type: kernel-tui doctor CONFIG",
        )
    on_gpu = _on_gpu(config, bool(gpus.names))
    told: list[str] = []
    without: list[str] = []
    for spec in asyncio.run(inspect_files(resolve(config.problems, config.path.parent))):
        if not isinstance(spec, ProblemSpec) or not spec.languages:
            reason = spec.c_refusal if isinstance(spec, ProblemSpec) else str(spec)
            without.append(f"{spec.id}: {reason}")
            continue
        possible = spec.languages_on("cuda" if on_gpu else "cpu", config.search.languages)
        writers = writers_of(config, spec)
        able = [one.proposer for one in writers if set(possible) & set(one.languages)]
        if able or not writers:
            told.append(f"{spec.id}: {', '.join(able) or 'replay'}")
        else:
            without.append(
                f"no proposer can write a {' or '.join(LANGUAGE_NAMES[language] for language in possible)} kernel for "
                f"{spec.id}: {writers[0].refusal}"
            )
    if not without:
        return Finding(name, "ok", "; ".join(told))
    remedy = (
        f"add a language model to the config, seed a kernel in the running search, or add this table:\n{MANUAL_TABLE}"
    )
    return Finding(name, "warn", "; ".join((*without, *told)), remedy)
