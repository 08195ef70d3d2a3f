"""What a person may have meant by a name that there is not."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``, did you mean softmax?`` for the known name that is written most alike; "" where none is alike."""
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""
