"""How drivers of this process read the keyboard: any bytes become text, and what is pasted stays text."""

from __future__ import annotations

import codecs
from functools import partial

from textual.drivers import linux_driver

from tui.pasting import PastingParser


def _decoder(encoding: str) -> partial[codecs.IncrementalDecoder]:
    """In the place of ``codecs.getincrementaldecoder``: what is no text becomes U+FFFD."""
    return partial(codecs.getincrementaldecoder(encoding), errors="replace")


def install() -> None:
    """From now on, drivers read with ``PastingParser``, and no byte ends them: they know no other way to be told.

    Textual decodes strictly, and ends the app at a byte that is no UTF-8: from a paste through tmux, or from a mouse
    that reports in X10's encoding.
    """
    linux_driver.XTermParser = PastingParser  # type: ignore[attr-defined]
    linux_driver.getincrementaldecoder = _decoder  # type: ignore[attr-defined, assignment]
