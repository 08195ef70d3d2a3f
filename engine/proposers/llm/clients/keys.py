"""Read each model provider's API key once from the environment, and never display a key. The engine deletes a key from
its environment when it reads the key. Compilers, judges and kernels therefore never inherit a key from the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from engine.config.model_tables import CalledModel
from engine.exit_codes import ExitCode
from engine.proposers.llm.model_protocol import CallFailed

_NONE_NEEDED = "none"
"""Placeholder key for servers that need no key, because the SDKs require a key."""

_taken: dict[str, str] = {}


class KeyMissing(Exception):
    """The environment does not contain a model's API key."""

    exit_code = ExitCode.NO_KEY


def key_for(model: CalledModel) -> str:
    """Read a model's key, and delete it from the environment. Raises :class:`KeyMissing`."""
    variable = model.key_variable
    if variable is None:
        return _NONE_NEEDED
    if found := os.environ.pop(variable, "").strip():
        _taken[variable] = found
    if variable not in _taken:
        raise _missing(model, variable)
    return _taken[variable]


def check_key(model: CalledModel) -> None:
    """Check that the environment contains a model's key, without deleting the key. Raises :class:`KeyMissing`."""
    variable = model.key_variable
    if variable is not None and variable not in _taken and not os.environ.get(variable, "").strip():
        raise _missing(model, variable)


def value_of(variable: str) -> str | None:
    """Return an environment variable's value for a program, even after :func:`key_for` deleted the variable.

    Return None if the variable is not set.
    """
    return _taken.get(variable, os.environ.get(variable))


def _missing(model: CalledModel, variable: str) -> KeyMissing:
    return KeyMissing(
        f"{model.label}: the environment variable {variable} is not set. Set it before you start kernel-tui: "
        f"export {variable}=..."
    )


def refused_key(model: CalledModel, said: str) -> str:
    """Add the name of the rejected key's environment variable to the server's message."""
    if model.key_variable is None:
        return f"the request had no API key, because the model's [[models]] table does not set key_env: {said}"
    return f"{model.key_variable}: {said}"


def without_key(failure: CallFailed, model: CalledModel, key: str) -> CallFailed:
    """Return ``failure`` with ``key`` masked in its message. If the server rejected the key, the message also names the
    key's variable.
    """
    message = without_keys(str(failure), (key,))
    if failure.kind == "key":
        message = refused_key(model, message)
    return CallFailed(failure.kind, message, failure.retry_after_s, failure.usage, failure.dollars)


def without_keys(text: str, keys: Iterable[str]) -> str:
    """Mask every key in ``text``, because servers often quote a rejected key."""
    for key in keys:
        if len(key) >= 4 and key != _NONE_NEEDED:
            text = text.replace(key, "[key]")
    return text
