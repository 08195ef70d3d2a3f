"""Split source text into spans by syntax. The Pygments lexers load on first use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from engine.problem.spec import MODULES, Language

if TYPE_CHECKING:
    from pygments.lexer import Lexer

MAX_HIGHLIGHTED = 50_000
"""Maximum number of colored characters. Coloring this many takes half a second. Later text stays plain."""

Spans = tuple[tuple[tuple[str, str], ...], ...]
"""The (text, style) pairs of each line. A style is a field of ``tui.monitor.theme.palette.Palette``."""


@lru_cache(maxsize=64)
def spans_of(text: str, language: Language) -> Spans:
    """Return a source's lines as colored spans. The source must not contain control characters."""
    lines = text.split("\n") if text else []
    coloured = len(lines)
    if len(text) > MAX_HIGHLIGHTED:
        coloured = text.count("\n", 0, MAX_HIGHLIGHTED)
    found: list[list[tuple[str, str]]] = [[]]
    for style, value in _tokens("\n".join(lines[:coloured]), language):
        for number, piece in enumerate(value.split("\n")):
            if number:
                found.append([])
            if piece:
                found[-1].append((piece, style))
    return (*map(tuple, found[:coloured]), *(((one, "text"),) for one in lines[coloured:]))


def _tokens(text: str, language: Language) -> Iterator[tuple[str, str]]:
    from pygments.token import Comment, Keyword, Name, Number, String

    styles: tuple[tuple[Any, str], ...] = (
        (Comment.Preproc, "preprocessor"),
        (Comment.PreprocFile, "string"),
        (Comment, "comment"),
        (Keyword, "keyword"),
        (String, "string"),
        (Number, "number"),
        (Name.Function, "function"),
        (Name.Builtin, "accent"),
    )
    for token, value in _lexer(language).get_tokens(text):
        yield next((style for kind, style in styles if token in kind), "text"), value


@lru_cache(maxsize=4)
def _lexer(language: Language) -> Lexer:
    if language in MODULES:
        from pygments.lexers.python import PythonLexer

        return PythonLexer(stripnl=False, ensurenl=False)
    from pygments.lexers.c_like import CudaLexer

    return CudaLexer(stripnl=False, ensurenl=False)  # type: ignore[no-untyped-call]
