"""Keys of model providers: read from the environment once, shown nowhere.

The engine takes a key out of its environment as it reads it, so that the processes it starts (compilers, judges, the
kernels under test) never have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from engine.config_models import GeminiModel, OpenAIModel
from engine.exit_codes import ExitCode

_NONE_NEEDED = "none"
"""The SDKs want a key; servers of one's own ignore it."""

_taken: dict[str, str] = {}


class KeyMissing(Exception):
    """A model needs a key that is not in the environment."""

    exit_code = ExitCode.NO_KEY


def key_for(model: OpenAIModel | GeminiModel) -> str:
    """The key to send. Raises :class:`KeyMissing`."""
    variable = model.key_variable
    if variable is None:
        return _NONE_NEEDED
    if found := os.environ.pop(variable, "").strip():
        _taken[variable] = found
    if variable not in _taken:
        raise _missing(model, variable)
    return _taken[variable]


def check_key(model: OpenAIModel | GeminiModel) -> None:
    """Look whether the key is in the environment, and leave it there. Raises :class:`KeyMissing`."""
    variable = model.key_variable
    if variable is not None and variable not in _taken and not os.environ.get(variable, "").strip():
        raise _missing(model, variable)


def _missing(model: OpenAIModel | GeminiModel, variable: str) -> KeyMissing:
    return KeyMissing(
        f"{model.label}: the environment variable {variable} is not set; set it where kernel-tui is started: "
        f"export {variable}=..."
    )


def refused_key(model: OpenAIModel | GeminiModel, said: str) -> str:
    """Which key a server refuses, before the server's own words."""
    if model.key_variable is None:
        return f"none was sent, key_env in its [[models]] table names the variable with one: {said}"
    return f"{model.key_variable}: {said}"


def without_keys(text: str, keys: Iterable[str]) -> str:
    """``text`` with every key in it blotted out: servers like to repeat the one that they refuse."""
    for key in keys:
        if len(key) >= 4 and key != _NONE_NEEDED:
            text = text.replace(key, "[key]")
    return text
