"""Colors with different meanings stay distinct in every theme and at every color depth."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from rich.color import ColorSystem
from rich.style import Style
from textual.theme import BUILTIN_THEMES

from benchmarks.pseudo_terminal import Terminal
from benchmarks.synthetic_session import write_session
from tests.tui.conftest import NOW, SMALL
from tui.monitor.settings import THEMES
from tui.monitor.theme.depth import Depth, theme_for
from tui.monitor.theme.palette import from_theme

MEANINGS = ("text", "dim", "good", "bad", "warn", "running", "accent")
SYSTEMS: dict[Depth, ColorSystem] = {
    "16": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


def seen(style: Style, system: ColorSystem) -> object:
    """Return a style's visible features on a terminal with the given color depth."""
    color = style.color.downgrade(system) if style.color is not None else None
    return (None if color is None or color.is_default else (color.number, color.triplet), style.dim)


@pytest.mark.parametrize("depth", SYSTEMS)
@pytest.mark.parametrize("wanted", THEMES)
def test_styles_of_other_meaning_look_different(wanted: str, depth: Depth) -> None:
    theme = BUILTIN_THEMES[theme_for(depth, wanted)]
    assert theme.dark == BUILTIN_THEMES[wanted].dark
    palette = from_theme(theme.to_color_system().generate(), ansi=theme.ansi, dark=theme.dark)
    shown = {name: seen(palette.named(name), SYSTEMS[depth]) for name in MEANINGS}
    assert not [(a, b) for a, b in itertools.combinations(MEANINGS, 2) if shown[a] == shown[b]]


@pytest.mark.parametrize(
    ("environment", "some", "none"),
    [
        ({"TERM": "xterm", "COLORTERM": ""}, rb"\x1b\[[0-9;]*3[1-6]", rb"[34]8;[25];"),
        ({"TERM": "xterm-256color", "COLORTERM": ""}, rb"38;5;", rb"38;2;"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, rb"38;2;", rb"38;5;"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, rb"\x1b\[1;39;49m", rb"\x1b\[(\d+;)*[34]([1-6]|8;[25];[\d;]+)(;\d+)*m"),
        ({"TERM": "vt100"}, rb"\x1b\[1;39;49m", rb"\x1b\[(\d+;)*[34]([1-6]|8;[25];[\d;]+)(;\d+)*m"),
    ],
)
def test_a_terminal_gets_the_colors_that_it_has(
    tmp_path: Path, environment: dict[str, str], some: bytes, none: bytes
) -> None:
    paths = write_session(tmp_path, "small", SMALL, end=NOW)
    terminal = Terminal(["attach", str(paths.directory)], tmp_path / "settings", environment=environment)
    try:
        terminal.wait_for("detach")
        terminal.read_for(1.0)
        assert re.search(some, terminal.seen) and not re.search(none, terminal.seen)
        if environment == {"TERM": "xterm", "COLORTERM": ""}:
            colors = set(re.findall(rb"\x1b\[(?:[0-9]+;)*(3[1-6])[;m]", terminal.seen))
            assert len(colors) >= 4, "good, bad, running and warnings"
    finally:
        terminal.close()
