"""Checks of the models that a config names."""

from __future__ import annotations

from datetime import UTC, date, datetime

from engine.config import Config, GeminiModel, OpenAIModel
from engine.doctor.finding import Finding, Level
from engine.models.retirement import retirement


def retirements(config: Config | None, today: date | None = None) -> Finding:
    """Whether the config's models are switched off by their provider, or soon will be."""
    name = "models"
    today = today or datetime.now(UTC).date()
    remote = [] if config is None else [one for one in config.models if isinstance(one, OpenAIModel | GeminiModel)]
    if not remote:
        return Finding(name, "ok", "none behind a network")
    told: list[str] = []
    level: Level = "ok"
    for model in dict.fromkeys(one.model for one in remote):
        if (last := retirement(model)) is None:
            continue
        if last <= today:
            told.append(f"{model} was retired on {last}")
            level = "fail"
        else:
            told.append(f"{model} retires on {last}, in {(last - today).days} days")
            level = "warn" if level == "ok" else level
    if told:
        return Finding(
            name, level, "; ".join(told), "name a newer model in [[models]]; kernel-tui init writes live ones"
        )
    return Finding(name, "ok", ", ".join(dict.fromkeys(one.model for one in remote)) + ": no retirement announced")
