"""The styles that panes draw with, derived from the theme; without colour they differ by weight and reversal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from rich.style import Style
from textual.color import Color, ColorParseError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import App


class Palette(Struct, frozen=True):
    """One style per meaning. ``cursor`` goes under the row that has the cursor, ``marked`` under marked rows."""

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
        """The style of a glyph."""
        found: Style = getattr(self, name)
        return found


def monochrome() -> Palette:
    """For ``NO_COLOR`` and terminals without colour."""
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


def from_theme(variables: Mapping[str, str], *, ansi: bool) -> Palette:
    """Styles in the colours of a theme. ``variables``: those of ``App.get_css_variables``."""

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
    if ansi:
        good, bad, warn = color("success"), color("error"), color("warning")
        accent, primary, secondary = color("accent"), color("primary"), color("secondary")
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
    """Between text and background, nearer to the text on light ones, where the eye tells less apart."""
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
    """The palette of the app's theme, made once per theme."""
    key = (app.theme, app.no_color)
    found: tuple[tuple[str, bool], Palette] | None = getattr(app, "_kernel_palette", None)
    if found is None or found[0] != key:
        ansi = bool(app.native_ansi_color)
        palette = monochrome() if app.no_color else from_theme(app.get_css_variables(), ansi=ansi)
        found = (key, palette)
        app._kernel_palette = found  # type: ignore[attr-defined]
    return found[1]
