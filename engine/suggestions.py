"""Suggestions for misspelled names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_NUMBERED = re.compile(r"[vi]\d+")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean softmax?`` for the known name closest to ``name``; "" if none is close.

    Ids such as ``v99`` get no suggestion, because a wrong number is not a misspelling.
    """
    if _NUMBERED.fullmatch(name):
        return ""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
