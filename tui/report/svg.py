"""Turn a Matplotlib figure into an inline SVG that takes its colors and font from the page.

Matplotlib writes fixed colors and ``style`` attributes. This module turns each color of ``INKS`` into a CSS variable.
It turns styles into attributes, because the page's Content-Security-Policy forbids inline styles.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INKS = {
    name: f"#{0x1F0100 + number:06x}"
    for number, name in enumerate(
        ("ink", "muted", "rule", "paper", "accent", "good", "bad", "warn", "failed", "other", "faint")
    )
}
"""Colors that stand for the page's CSS variables. A chart may use no other colors."""
_VARIABLES = {color: f"var(--{name})" for name, color in INKS.items()}
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_DROPPED = {f"{_SVG}metadata", f"{_SVG}style", f"{_SVG}title"}
_PLACED = ("x", "y", "href")
"""Attributes that differ between the uses of a marker."""


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """Return ``figure`` as an ``<svg>`` element.

    Args:
        figure: A figure whose colors are all in ``INKS``.
        name: Prefix of the ids in the SVG. The prefix must be unique in the page.
        label: A description of the chart, for screen readers.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    root = ElementTree.fromstring(file.getvalue())
    ids = _Ids(name)
    for element in list(root.iter()):
        for child in [child for child in element if child.tag in _DROPPED]:
            element.remove(child)
    _clean(root, ids)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


class _Ids:
    """Short ids, unique in the page."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: dict[str, str] = {}

    def short(self, long: str) -> str:
        return self._known.setdefault(long, f"{self._prefix}-{len(self._known)}")


def _clean(element: ElementTree.Element, ids: _Ids) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in [*attributes.items(), *_properties(attributes.pop("style", ""))]:
        if key == "style":
            continue
        if key == "id":
            if element.tag in ("path", "clipPath"):
                element.set("id", ids.short(value))
        elif key in (_HREF, "href"):
            element.set("href", f"#{ids.short(value.removeprefix('#'))}")
        elif value.startswith("url(#"):
            element.set(key, f"url(#{ids.short(value[5:-1])})")
        else:
            element.set(key, _VARIABLES.get(value, _rounded(value)))
    for child in element:
        _clean(child, ids)
    _hoist(element)


def _properties(style: str) -> list[tuple[str, str]]:
    """Return a style's properties as attributes. The font comes from the page, except for its size."""
    found = []
    for part in filter(None, (one.strip() for one in style.split(";"))):
        key, _, value = (one.strip() for one in part.partition(":"))
        if key == "font":
            size = re.search(r"[\d.]+px", value)
            key, value = "font-size", size.group() if size is not None else "9px"
        if key not in ("font-family", "font-stretch", "font-style", "font-variant"):
            found.append((key, value))
    return found


def _rounded(value: str) -> str:
    """Round the numbers of a path or a transformation to hundredths of a unit."""
    return re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), value)


def _hoist(element: ElementTree.Element) -> None:
    """Move attributes from the markers in a group to the group, if all markers share them."""
    uses = [child for child in element if child.tag == "use"]
    if len(uses) < 2 or len(uses) != len([child for child in element if child.tag != "defs"]):
        return
    first = {key: value for key, value in uses[0].attrib.items() if key not in _PLACED}
    shared = {key: value for key, value in first.items() if all(use.get(key) == value for use in uses)}
    for key, value in shared.items():
        element.set(key, value)
        for use in uses:
            del use.attrib[key]
