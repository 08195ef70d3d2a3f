"""JSON that commands print, with the manual's names for fields and languages. Session files keep older names."""

from __future__ import annotations

from typing import Any, get_args

from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from engine.problem.spec import LANGUAGE_NAMES, Language

_LANGUAGES = ("language", "languages")
"""Keys whose values are languages."""


def readable(value: Any) -> Any:
    """Return ``value`` with structs converted to dicts, and languages to their names in ``LANGUAGE_NAMES``.

    Like msgspec, keep a struct's tag. For a struct with ``omit_defaults``, omit the fields that have their default
    value.
    """
    if isinstance(value, Struct):
        found = ((one, getattr(value, one.name)) for one in fields(value))
        short = value.__struct_config__.omit_defaults
        value = _tag(value) | {one.name: inner for one, inner in found if not (short and inner == _default(one))}
    if isinstance(value, dict):
        return {key: _languages(inner) if key in _LANGUAGES else readable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [readable(inner) for inner in value]
    return value


def _languages(value: Any) -> Any:
    """Return the name of a stored language, or of each language in a list. Other values stay unchanged."""
    if isinstance(value, list | tuple):
        return [_languages(one) for one in value]
    return LANGUAGE_NAMES[value] if value in get_args(Language) else value


def _tag(value: Struct) -> dict[str, Any]:
    config = value.__struct_config__
    return {config.tag_field: config.tag} if config.tag_field is not None else {}


def _default(one: FieldInfo) -> Any:
    return one.default if one.default_factory is NODEFAULT else one.default_factory()
