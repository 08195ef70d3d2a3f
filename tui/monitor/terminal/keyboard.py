"""Read the keyboard so that any bytes become text, and pasted text never acts as keys."""

from __future__ import annotations

import codecs
from functools import partial

from textual.drivers import linux_driver

from tui.monitor.terminal.pasting import PastingParser


def _decoder(encoding: str) -> partial[codecs.IncrementalDecoder]:
    """Return a decoder that turns invalid bytes into U+FFFD. Replaces ``codecs.getincrementaldecoder``."""
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")


def install() -> None:
    """Patch Textual's driver, which has no hook, to use ``PastingParser`` and accept any byte.

    Textual decodes strictly and exits on invalid UTF-8, which a paste through tmux or an X10 mouse can produce.
    """
    linux_driver.XTermParser = PastingParser  # type: ignore[attr-defined]
    linux_driver.getincrementaldecoder = _decoder  # type: ignore[attr-defined, assignment]
