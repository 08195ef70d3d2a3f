"""The option ``--language``, which accepts the manual's names and passes the stored values to commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from engine.problem.spec import LANGUAGE_NAMES, Language
from tui.cli.shared.common import F

_STORED: dict[str, Language] = {name: stored for stored, name in LANGUAGE_NAMES.items()}


class _LanguageChoice(click.Choice):  # type: ignore[type-arg]  # click 8.1 has no type argument
    """The type of ``--language``. For compatibility, it also accepts the file suffixes ``cu`` and ``py``."""

    def __init__(self) -> None:
        super().__init__(list(_STORED))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in LANGUAGE_NAMES:
            return value
        return _STORED[super().convert(value, param, ctx)]


class _OptionWithOldName(click.Option):
    """An option with a current and an old name. ``--help`` shows only the current name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def language_option(text: str) -> Callable[[F], F]:
    """Add ``--language`` with the help ``text``. The command gets a ``Language`` or None as ``language``."""
    return click.option("--language", "--form", "language", cls=_OptionWithOldName, type=_LanguageChoice(), help=text)
