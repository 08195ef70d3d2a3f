"""Prevent pasted text from acting as keys.

Textual's parser treats an escape character inside a bracketed paste as the start of a key. The rest of the paste then
acts as keys: pasting ``ESC`` and ``Qy`` would stop a search. Most terminals remove escapes from a paste, but tmux does
not.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.message import Message

BEGIN, END = "\x1b[200~", "\x1b[201~"
ESCAPE, SHOWN = "\x1b", "␛"


class PasteFilter:
    """Replace escape characters in pasted text with the visible symbol ``␛``.

    The input may arrive in pieces of any size.
    """

    def __init__(self) -> None:
        self._pasting = False
        self._before = ""
        """The last characters outside a paste, since a mark may arrive in two pieces."""
        self._held = ""
        """The last characters of a paste, which may be the start of its end mark."""

    def pass_on(self, data: str) -> str:
        passed = []
        while data:
            if self._pasting:
                data, self._held = self._held + data, ""
                text, end, data = data.partition(END)
                if end:
                    self._pasting = False
                else:
                    text, self._held = _split_end(text)
                passed.append(text.replace(ESCAPE, SHOWN) + end)
                continue
            seen = self._before + data
            place = seen.find(BEGIN)
            if place < 0:
                self._before = seen[1 - len(BEGIN) :]
                passed.append(data)
                break
            length = place + len(BEGIN) - len(self._before)
            passed.append(data[:length])
            data, self._before, self._pasting = data[length:], "", True
        return "".join(passed)


class PastingParser(XTermParser):
    """Textual's parser, with its input filtered by ``PasteFilter``."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = PasteFilter()

    def feed(self, data: str) -> Iterable[Message]:
        passed = self._pastes.pass_on(data)
        return super().feed(passed) if passed or not data else ()


def _split_end(text: str) -> tuple[str, str]:
    """Split off the end of ``text`` that may be the start of ``END``."""
    for length in range(min(len(END) - 1, len(text)), 0, -1):
        if text.endswith(END[:length]):
            return text[:-length], text[-length:]
    return text, ""
