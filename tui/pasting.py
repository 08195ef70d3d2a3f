"""What is pasted is text, whatever stands in it.

Textual's parser takes an escape character inside a bracketed paste for the beginning of a key, and gives what follows
it to the app as keys, one by one: a pasted ``ESC`` and ``Qy`` would stop a search. Most terminals take escapes out of
what they paste; tmux and some others do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.message import Message

BEGIN, END = "\x1b[200~", "\x1b[201~"
ESCAPE, SHOWN = "\x1b", "␛"


class PasteFilter:
    """Input as it comes, in pieces of any size; ``pass_on`` gives it back with no escape left between the marks of a
    paste."""

    def __init__(self) -> None:
        self._pasting = False
        self._before = ""  # the last characters outside of a paste: a mark may come in two pieces
        self._held = ""  # the last characters of a paste that may be the beginning of its end

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
    """Textual's parser behind a ``PasteFilter``."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pastes = PasteFilter()

    def feed(self, data: str) -> Iterable[Message]:
        passed = self._pastes.pass_on(data)
        return super().feed(passed) if passed or not data else ()


def _split_end(text: str) -> tuple[str, str]:
    """``text`` without what may be the beginning of ``END``, and that."""
    for length in range(min(len(END) - 1, len(text)), 0, -1):
        if text.endswith(END[:length]):
            return text[:-length], text[-length:]
    return text, ""
