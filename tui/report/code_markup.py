"""Sources, diffs and other long texts as HTML. The functions escape every text."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from engine.problem.spec import Language
from tui.console.echo import clean
from tui.source_text.changes import Changes
from tui.source_text.highlight import spans_of
from tui.text.sanitize import clean_lines

CLASSES = {
    "preprocessor": "pp",
    "string": "st",
    "comment": "co",
    "keyword": "kw",
    "number": "nu",
    "function": "fn",
    "accent": "bu",
}
"""CSS class of each highlighting style. Other text has no class."""
_DIFF_CLASSES = {"+": "add", "-": "del", "@": "hunk"}


def source_markup(source: str, language: Language) -> Markup:
    """Return a source as highlighted lines. The page numbers them."""
    lines = spans_of("\n".join(clean_lines(source)), language)
    return _lines("".join(_span(text, CLASSES.get(style, "")) for text, style in spans) for spans in lines)


def diff_markup(changes: Changes) -> Markup:
    """Return a diff with a class for each kind of line."""
    return Markup("\n").join(Markup(_span(text, _DIFF_CLASSES.get(text[:1], ""))) for text in changes.lines)


def text_markup(text: str) -> Markup:
    """Return the entire text, escaped and without control characters."""
    return escape(clean(text.replace("\r\n", "\n").replace("\r", "\n")))


def _lines(lines: Iterable[str]) -> Markup:
    return Markup("\n").join(Markup(f"<span>{line}</span>") for line in lines)


def _span(text: str, name: str) -> str:
    return f'<i class="{name}">{escape(text)}</i>' if name else str(escape(text))
