"""Text formatting that the detail pane's tabs share: headings, labeled values, and wrapped prose."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.text.program import as_typed
from tui.text.sanitize import MAX_LINES, clean_lines, left_out, lines_in

LABEL = 13


def heading(text: str, palette: Palette) -> list[Strip]:
    return [line(""), line((text, palette.title))]


def field(name: str, value: str, palette: Palette, style: Style | None = None) -> Strip:
    return line((f"{name:<{LABEL - 1}} ", palette.dim), (value, style if style is not None else palette.text))


def wrapped(
    text: str,
    style: Style,
    width: int,
    indent: int = 0,
    *,
    most: int = MAX_LINES,
    whole: str = "",
    is_message: bool = True,
) -> list[Strip]:
    """Wrap prose at spaces, and keep its line breaks.

    The commands that a message suggests start as the user started this program. ``is_message`` is false for a prompt, a
    reply or an idea, which must stay as they are.

    Cut a long text after about ``most`` lines. The last line then gives the number of missing lines, followed by
    ``whole``, which says how to see the full text.
    """
    room = max(20, width - indent - 1)

    def draw(paragraph: str) -> list[Strip]:
        return [line((" " * indent + piece, style)) for piece in _pieces(paragraph, room) or [""]]

    return _begins(as_typed(text) if is_message else text, most, as_typed(whole), draw, style)


def printed(text: str, style_of: Callable[[str], Style], width: int, whole: str) -> list[Strip]:
    """Wrap and cut a program's output as ``wrapped`` does, with a style for each line."""
    return _begins(text, MAX_LINES, whole, lambda one: folded([line((one, style_of(one)))], width - 1), style_of(""))


def _begins(text: str, most: int, whole: str, draw: Callable[[str], list[Strip]], style: Style) -> list[Strip]:
    """Return the first ``most`` lines of ``text``, and a note if more lines follow."""
    strips: list[Strip] = []
    paragraphs = clean_lines(text, most=most, whole=whole)
    for number, paragraph in enumerate(paragraphs):
        if len(strips) >= most and number < len(paragraphs) - 1:
            return [*strips, line((left_out(max(1, lines_in(text) - number), whole), style))]
        strips += draw(paragraph)
    return strips


def folded(strips: Iterable[Strip], width: int) -> list[Strip]:
    """Wrap lines that are wider than ``width``.

    If there is room, continuation lines align with the line's last part, such as a label's value.
    """
    room = max(20, width)
    lines: list[Strip] = []
    for strip in strips:
        lines += [strip] if strip.cell_length <= room else _folded(list(strip), room)
    return lines


def _folded(segments: list[Segment], room: int) -> list[Strip]:
    *head, tail = segments
    if head and tail.text.startswith(" "):
        bare = tail.text.lstrip()
        head, tail = [*head, Segment(" " * (len(tail.text) - len(bare)))], Segment(bare, tail.style)
    indent = sum(segment.cell_length for segment in head)
    if indent > room // 2:  # Without room to align the parts, put them on separate lines.
        return [Strip(head).crop(0, room), *folded([Strip([Segment("  ", tail.style), tail])], room)]
    if not head:
        blanks = min(len(tail.text) - len(tail.text.lstrip()), room // 2)
        head, tail, indent = [Segment(" " * blanks)], Segment(tail.text.lstrip(), tail.style), blanks
        first, *rest = _pieces(tail.text, room - indent - 2) or [""]
        indent += 2
    else:
        first, *rest = _pieces(tail.text, room - indent) or [""]
    return [
        Strip([*head, Segment(first, tail.style)]),
        *(Strip([Segment(" " * indent), Segment(piece, tail.style)]) for piece in rest),
    ]


def _pieces(text: str, room: int) -> list[str]:
    """Split ``text`` into pieces of at most ``room`` cells, at spaces if possible."""
    if len(text) <= room and text.isascii() and not text.endswith(" "):
        return [text] if text else []
    pieces = textwrap.wrap(text, room, break_long_words=True, break_on_hyphens=False, replace_whitespace=False)
    if text.isascii():
        return pieces
    return [part for piece in pieces for part in (chop_cells(piece, room) if cell_len(piece) > room else [piece])]
