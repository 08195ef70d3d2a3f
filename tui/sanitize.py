"""Text of models, compilers and kernels, made safe for a terminal.

Whatever the monitor shows that it did not write itself goes through here: control characters, escape sequences,
bidirectional overrides, lone surrogates and invalid UTF-8 become visible stand-ins, and long lines are cut. What comes
out holds no character that a terminal acts on, so it can neither restyle the screen nor drive it.
"""

from __future__ import annotations

import re

MAX_LINE = 2_000
"""Characters of one line that are shown."""
MAX_LINES = 10_000
"""Lines of one text that are shown: far more than anybody reads, and drawn before the next key is pressed."""
MAX_TEXT = 4_000_000
TAB = 4

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1 (8-bit CSI, OSC)
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e"  # invisible
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidirectional controls
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\ufff0-\ufffb\ufffe\uffff"  # surrogates, variation selectors, non-characters
    "\U000e0000-\U000e0fff"  # tags
    "]"
)


def clean_line(text: str, limit: int = MAX_LINE) -> str:
    """One line, safe to show: no line breaks, no control characters, at most ``limit`` characters and a note."""
    if len(text) > limit:
        left = len(text) - limit
        text = f"{text[:limit]} … {left:,} characters more"
    if text.isascii() and text.isprintable():
        return text
    if "\t" in text:
        text = text.expandtabs(TAB)
    return _UNSAFE.sub(_stand_in, text)


def clean_lines(text: str | bytes, *, most: int = MAX_LINES, whole: str = "") -> list[str]:
    """The first ``most`` lines of ``text``, each safe to show. A last line says what is left out, and ``whole``, which
    is where all of it is found."""
    if isinstance(text, bytes):
        text = text[: MAX_TEXT * 4].decode("utf-8", "replace")
    begins = text[:MAX_TEXT]
    *lines, rest = begins.replace("\r\n", "\n").replace("\r", "\n").split("\n", most)
    if rest and len(lines) < most:
        lines.append(rest)
        rest = ""
    cleaned = [clean_line(line) for line in lines]
    beyond = len(text) - len(begins)
    if rest or beyond:
        unseen = lines_in(rest) + (text.count("\n", MAX_TEXT) if beyond else 0)
        cleaned.append(left_out(unseen, whole) if unseen else left_out(beyond, whole, "character"))
    return cleaned


def lines_in(text: str) -> int:
    """How many lines a text has; a line break at its end begins none."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def left_out(count: int, whole: str = "", of: str = "line") -> str:
    """The last line of a text that is too long to be shown."""
    said = f"… {count:,} {of}{'' if count == 1 else 's'} more"
    return f"{said}; {whole}" if whole else said


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """A text as one safe line: line breaks and runs of blanks become one blank; what is too long ends in ``…``."""
    joined = " ".join(text[: limit * 4].split())
    return clean_line(joined if len(joined) <= limit else f"{joined[: limit - 1]}…", limit)


def clean_paste(text: str) -> str:
    """What a person pastes into a field or an editor here: its line breaks and tabs stay, whatever else a terminal acts
    on, and what reads otherwise than it compiles, is dropped."""
    return _UNSAFE.sub(lambda found: found.group() if found.group() in "\n\r\t" else "", text)


def _stand_in(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "�"
