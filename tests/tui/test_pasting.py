"""Escape sequences in pasted text never act as keys, no matter how the paste is split."""

from __future__ import annotations

import random

from textual import events

from tui.monitor.terminal.pasting import BEGIN, END, PasteFilter, PastingParser

STREAM = f"j\x1b[A{BEGIN}a\x1bQy\x1b[20\x1a{BEGIN}{END}k\x1b{BEGIN}\x1b[201{END}\x1b"
PASSED = f"j\x1b[A{BEGIN}a␛Qy␛[20\x1a␛[200~{END}k\x1b{BEGIN}␛[201{END}\x1b"


def test_only_what_is_pasted_loses_its_escapes() -> None:
    assert PasteFilter().pass_on(STREAM) == PASSED


def test_pieces_of_any_size_come_to_the_same() -> None:
    rng = random.Random(4)
    for _ in range(300):
        pieces, rest = [], STREAM
        while rest:
            size = rng.randrange(1, 9)
            pieces.append(rest[:size])
            rest = rest[size:]
        pastes = PasteFilter()
        assert "".join(map(pastes.pass_on, pieces)) == PASSED, pieces


def test_a_key_alone_is_passed_on_at_once() -> None:
    pastes = PasteFilter()
    for key in ("\x1b", "\x1b[", "q", "\x1b[200"):
        assert pastes.pass_on(key) == key


def test_the_app_gets_one_paste_and_no_keys() -> None:
    parser = PastingParser()
    found = [one for piece in (f"{BEGIN}a\x1bQy{'z' * 40}", f"\x1b\x1a{END}") for one in parser.feed(piece)]
    (paste,) = (one for one in found if not isinstance(one, events.Resize))
    assert isinstance(paste, events.Paste)
    assert paste.text == f"a␛Qy{'z' * 40}␛\x1a"
