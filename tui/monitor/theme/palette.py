"""The styles of the panes, derived from the theme. Without color, the styles differ by weight and reverse video."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from rich.style import Style
from textual.color import Color, ColorParseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import App


class Palette(Struct, frozen=True):
    """A style for each meaning. ``cursor`` is the selected row's background. ``found`` marks search matches."""

    text: Style
    dim: Style
    bold: Style
    good: Style
    bad: Style
    warn: Style
    best: Style
    running: Style
    accent: Style
    chart: Style
    title: Style
    cursor: Style
    cursor_blurred: Style
    marked: Style
    found: Style
    found_here: Style
    alarm: Style
    added: Style
    removed: Style
    keyword: Style
    string: Style
    number: Style
    comment: Style
    preprocessor: Style
    function: Style

    def named(self, name: str) -> Style:
        """Return the style with this name."""
        found: Style = getattr(self, name)
        return found


def monochrome() -> Palette:
    """Return styles for ``NO_COLOR`` and for terminals without color."""
    plain, bold, faint, reverse = Style(), Style(bold=True), Style(dim=True), Style(reverse=True)
    return Palette(
        text=plain,
        dim=faint,
        bold=bold,
        good=plain,
        bad=plain,
        warn=bold,
        best=bold,
        running=bold,
        accent=bold,
        chart=plain,
        title=bold,
        cursor=reverse,
        cursor_blurred=Style(underline=True),
        marked=Style(underline=True),
        found=reverse,
        found_here=Style(bold=True, reverse=True, underline=True),
        alarm=Style(bold=True, reverse=True),
        added=bold,
        removed=faint,
        keyword=bold,
        string=plain,
        number=plain,
        comment=faint,
        preprocessor=faint,
        function=plain,
    )


ANSI_DARK = ("green", "red", "yellow", "magenta", "cyan", "blue")
"""Good, bad, warning, accent, primary and secondary, in the terminal's own colors."""
ANSI_LIGHT = ("green", "red", "magenta", "cyan", "blue", "bright_black")
"""The same six colors for a light background, on which yellow is unreadable."""


def from_theme(variables: Mapping[str, str], *, ansi: bool, dark: bool = True) -> Palette:
    """Return styles in a theme's colors, or in the terminal's own colors if ``ansi`` is true.

    ``variables`` come from ``App.get_css_variables``.
    """

    def color(name: str, fallback: str = "foreground") -> Style:
        for key in (name, fallback):
            try:
                return Style(color=Color.parse(variables[key]).rich_color)
            except (KeyError, ColorParseError):
                continue
        return Style()

    text = Style() if ansi else color("foreground")
    dim = Style(dim=True) if ansi else _faded(variables)
    good, bad, warn = color("text-success", "success"), color("text-error", "error"), color("text-warning", "warning")
    accent, primary = color("text-accent", "accent"), color("text-primary", "primary")
    secondary = color("text-secondary", "secondary")
    if accent == warn:  # Textual's own themes use one orange for both meanings.
        accent = secondary
    if ansi:
        good, bad, warn, accent, primary, secondary = map(Style.parse, ANSI_DARK if dark else ANSI_LIGHT)
        cursor, blurred = Style(reverse=True), Style(underline=True)
    else:
        cursor = Style(bgcolor=_rich(variables, "primary-muted", "primary-background"))
        blurred = Style(bgcolor=_rich(variables, "panel", "surface"))
    return Palette(
        text=text,
        dim=dim,
        bold=text + Style(bold=True),
        good=good,
        bad=bad,
        warn=warn,
        best=good + Style(bold=True),
        running=primary + Style(bold=True),
        accent=accent,
        chart=primary,
        title=primary + Style(bold=True),
        cursor=cursor,
        cursor_blurred=blurred,
        marked=accent + Style(bold=True),
        found=accent + Style(reverse=True),
        found_here=warn + Style(bold=True, reverse=True),
        alarm=bad + Style(bold=True, reverse=True),
        added=good,
        removed=bad,
        keyword=primary + Style(bold=True),
        string=good,
        number=accent,
        comment=dim + Style(italic=not ansi),
        preprocessor=secondary,
        function=text + Style(bold=True),
    )


def _faded(variables: Mapping[str, str]) -> Style:
    """Return a color between text and background, closer to the text on a light background for contrast."""
    try:
        text, background = Color.parse(variables["foreground"]), Color.parse(variables["background"])
    except (KeyError, ColorParseError):
        return Style(dim=True)
    return Style(color=text.blend(background, 0.34 if background.brightness > 0.5 else 0.42).rich_color)


def _rich(variables: Mapping[str, str], name: str, fallback: str) -> str | None:
    for key in (name, fallback):
        try:
            return Color.parse(variables[key]).rich_color.name
        except (KeyError, ColorParseError):
            continue
    return None


def palette_of(app: App[object]) -> Palette:
    """Return the palette of the app's theme. The app caches the palette of the current theme."""
    key = (app.theme, app.no_color)
    found: tuple[tuple[str, bool], Palette] | None = getattr(app, "_kernel_palette", None)
    if found is None or found[0] != key:
        ansi = bool(app.native_ansi_color)
        palette = (
            monochrome()
            if app.no_color
            else from_theme(app.get_css_variables(), ansi=ansi, dark=app.current_theme.dark)
        )
        found = (key, palette)
        app._kernel_palette = found  # type: ignore[attr-defined]
    return found[1]
