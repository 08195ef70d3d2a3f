"""A console for tables and words in a terminal or a pipe: it prints nothing that a terminal acts on but its own."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from tui.sanitize import clean_line


class _Cleaned:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._renderable, options):
            if control is not None:
                yield Segment(text, style, control)
            else:
                yield Segment("\n".join(clean_line(part, len(part)) for part in text.split("\n")), style)


class CleanHook(RenderHook):
    """Cleans whatever is printed, after Rich has laid it out: names, reasons, figures, whoever wrote them."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(one) for one in renderables]


def clean_console(width: int | None) -> Console:
    """A console on standard output without markup, emoji codes or highlighting. ``width`` None: the terminal's."""
    console = Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)
    console.push_render_hook(CleanHook())
    return console
