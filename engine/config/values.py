"""Types of config values. Each type defines the values that it accepts and the error for any other value.

Each error message follows the key's name: ``KEY: what is wrong; what to do``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from engine.config import tolerance

BUILTIN = "builtin:"
"""Prefix of the names of problems that ship with kernel-tui: ``builtin:quickstart/softmax``."""

_SIZE = re.compile(r"(?i)^\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*$")
_SIZE_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_DEVICE = re.compile(r"^(cpu|cuda(:\d+)?)$")
_ENVIRONMENT_NAME = re.compile(r"^[A-Z_][A-Z0-9_]*$")


class Table(BaseModel):
    """Base of all tables in the config: frozen, with strict types ("4" is not a number) and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def refusal(message: str) -> PydanticCustomError:
    """Create the error for an invalid value, for a validator to raise."""
    # Pass the text as an argument, because pydantic would parse braces in a template as fields.
    return PydanticCustomError("config", "{what}", {"what": message})


def session_name(name: str) -> str:
    """Validate the name of a session, and return it. Raises PydanticCustomError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise refusal(
            f"{name!r} is not a valid session name; use at most 64 letters, digits, '.', '_' and '-', and start with a "
            "letter or digit"
        )
    return name


def _beside_config(value: str | Path, info: ValidationInfo) -> str:
    directory: Path = (info.context or {}).get("directory", Path.cwd())
    return str((directory / Path(value).expanduser()).absolute())


def _problem(value: str, info: ValidationInfo) -> str:
    if not value.strip():
        raise refusal(
            "the text is empty; use a file, a directory, a glob, or a built-in problem such as "
            "builtin:quickstart/softmax"
        )
    return value if value.startswith(BUILTIN) else _beside_config(value, info)


def _path(value: object, info: ValidationInfo) -> object:
    return Path(_beside_config(value, info)) if isinstance(value, str | Path) and str(value) else value


def device_names(value: object) -> object:
    """Validate a device name or a list of device names, and return the name or a tuple of names. Raises
    PydanticCustomError.
    """
    names = value if isinstance(value, list | tuple) else (value,)
    allowed = '"auto", "cpu", "cuda", "cuda:1", or a list such as ["cuda:0", "cuda:1"]'
    if not names or not all(isinstance(name, str) for name in names):
        raise refusal(f"{value!r} is not a device; use {allowed}")
    if tuple(names) == ("auto",):
        return "auto"
    if unknown := [name for name in names if not _DEVICE.match(name)]:
        raise refusal(f"no device is called {' or '.join(map(repr, unknown))}; use {allowed}")
    if len(set(names)) < len(names):
        raise refusal(f"the list {', '.join(names)} repeats a device; name each device once")
    return tuple(names) if isinstance(value, list | tuple) else value


def _tolerance(value: object) -> object:
    if (meant := tolerance.canonical(value)) is None:
        raise refusal(f"{value!r} is not a tolerance; use {tolerance.ALLOWED}")
    return meant


def _memory_limit(value: object) -> object:
    if value == "auto":
        return value
    size: float | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.match(value)) is not None:
        unit = (match[2] or "").lower()
        base = 1024 if unit.endswith("i") else 1000
        size = float(match[1]) * base ** _SIZE_POWER.get(unit[:1], 0)
    if size is None:
        raise refusal(f'{value!r} is not a size; use "auto" or a size such as "4GiB" or "500MB"')
    if size < 64 * 1024**2:
        raise refusal(f"{value!r} is too small to load a kernel; use 64MiB or more")
    return int(size)


def _key_variable(name: str) -> str:
    if not _ENVIRONMENT_NAME.match(name):
        # The message must not repeat the value, which may be the key itself.
        raise refusal("this must be the name of an environment variable such as OPENAI_API_KEY, not the key itself")
    return name


def _environment_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # The message must not repeat the value, which may be NAME=secret.
        raise refusal("the list must contain only names of environment variables such as HOME, without values")
    return name


def _command(words: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if not words or not words[0].strip() or any("\0" in word for word in words):
        raise refusal('the list contains no program; use a program with its arguments, such as ["my-agent", "--print"]')
    program = words[0]
    return (_beside_config(program, info) if "/" in program else program, *words[1:])


def _base_url(url: str) -> str:
    if not re.match(r"^https?://[^/\s]", url):
        raise refusal("the text is not a URL; use http://HOST... or https://HOST...")
    if "@" in url.split("/")[2]:
        raise refusal(
            "the URL contains a user name or password; remove them, and set key_env to the environment variable with "
            "the key"
        )
    return url


SessionName = Annotated[str, AfterValidator(session_name)]
ProblemReference = Annotated[str, AfterValidator(_problem)]
ResolvedPath = Annotated[Path, BeforeValidator(_path)]
KeyVariable = Annotated[str, AfterValidator(_key_variable)]
EnvironmentName = Annotated[str, AfterValidator(_environment_name)]
Command = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_command)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
Device = Annotated[str | tuple[str, ...], BeforeValidator(device_names)]
Tolerance = Annotated[str | float, BeforeValidator(_tolerance)]
MemoryLimit = Annotated[int | Literal["auto"], BeforeValidator(_memory_limit)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
