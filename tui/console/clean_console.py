"""A Rich console whose printed text cannot control the terminal."""

from __future__ import annotations

from textwrap import fill

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.text import Text

from tui.text.program import as_typed
from tui.text.sanitize import clean_line

PIPE_WIDTH = 100_000
"""Width of a console in a pipe, in cells. No line is this long, so a pipe gets whole lines."""


class _Cleaned:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line: list[Segment] = []
        for text, style, control in console.render(self._renderable, options):
            if control is not None:
                yield from line
                line = []
                yield Segment(text, style, control)
                continue
            first, *others = text.split("\n")
            line.append(Segment(clean_line(first, len(first)), style))
            for part in others:
                yield from _without_end(line)
                yield Segment.line()
                line = [Segment(clean_line(part, len(part)), style)]
        yield from line


def _without_end(line: list[Segment]) -> list[Segment]:
    """Strip trailing blanks: they would wrap in a narrower window and end up in copied text."""
    while line and not line[-1].text.rstrip(" "):
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(" "), line[-1].style)] if line else []


class CleanHook(RenderHook):
    """Clean all printed text after Rich has laid it out."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(one) for one in renderables]


def clean_console(width: int | None, *, err: bool = False) -> Console:
    """Return a console on standard output, or on standard error, without markup, emoji codes or highlighting.

    ``width`` is in cells. If ``width`` is None, the console has the terminal's width.
    """
    console = Console(width=width, stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=False)
    console.push_render_hook(CleanHook())
    return console


def print_prose(out: Console, text: str, style: str = "", *, indent: int = 0) -> None:
    """Print a paragraph. ``indent`` applies to all lines except the first.

    On a terminal, lines break only between words, even if a word is wider than the terminal. A pipe gets one line.
    """
    text = as_typed(text)
    if out.is_terminal or out.width < PIPE_WIDTH:
        text = fill(text, out.width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    out.print(Text(text, style=style), soft_wrap=True)
