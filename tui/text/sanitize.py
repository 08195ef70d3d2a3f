"""Make text from models, compilers and kernels safe for a terminal.

Visible characters replace control characters, escape sequences, bidirectional overrides, lone surrogates and invalid
UTF-8. The functions cut long lines. The result contains nothing that a terminal would interpret.
"""

from __future__ import annotations

import re

MAX_LINE = 2_000
"""Maximum number of characters shown per line."""
MAX_LINES = 10_000
"""Maximum number of lines shown per text. Drawing this many lines takes no noticeable time."""
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
    """Make one line safe to show. Cut the line after ``limit`` characters, and append the number of characters cut."""
    if len(text) > limit:
        left = len(text) - limit
        text = f"{text[:limit]} … {left:,} characters more"
    if text.isascii() and text.isprintable():
        return text
    if "\t" in text:
        text = text.expandtabs(TAB)
    return _UNSAFE.sub(_stand_in, text)


def clean_lines(text: str | bytes, *, most: int = MAX_LINES, whole: str = "") -> list[str]:
    """Return the first ``most`` lines of ``text``, each safe to show.

    If lines are left out, the last line says how many. It ends with ``whole``, which says where to find the full text.
    """
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
    """Count the lines of a text. A trailing line break does not start a new line."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def left_out(count: int, whole: str = "", of: str = "line") -> str:
    """Return a line that says how many lines of a text are left out."""
    said = f"… {count:,} {of}{'' if count == 1 else 's'} more"
    return f"{said}; {whole}" if whole else said


def one_line(text: str, limit: int = MAX_LINE) -> str:
    """Join a text into one safe line. Collapse whitespace, and end a long text with ``…``."""
    joined = " ".join(text[: limit * 4].split())
    return clean_line(joined if len(joined) <= limit else f"{joined[: limit - 1]}…", limit)


def clean_paste(text: str) -> str:
    """Remove control and invisible characters from pasted text, except line breaks and tabs."""
    return _UNSAFE.sub(lambda found: found.group() if found.group() in "\n\r\t" else "", text)


def _stand_in(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "�"
