"""Line numbers of keys in a TOML text, which ``tomllib`` does not report.

The text must parse with ``tomllib.loads``, because this scan does not check the syntax. It handles tables, arrays of
tables, dotted and quoted keys, inline tables, multi-line arrays and all four kinds of strings.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

KeyPath = tuple[str | int, ...]
"""Path of a key: table names, keys, and indexes into arrays, such as ``("models", 0, "weight")``."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_MULTILINE = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}', re.DOTALL)
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line numbers, from 1, of every table header, key and array element in a valid TOML text."""
    return _Scan(text).run()


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """Line number of ``path`` or, if the text lacks it, of the nearest enclosing table. The number is 1 if the text has
    neither.
    """
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return 1


def dotted(path: KeyPath) -> str:
    """Format a path for errors, with indexes from 1: ``models[1].weight``."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.lines: dict[KeyPath, int] = {}
        self.table_arrays: dict[KeyPath, int] = {}

    def run(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(_BLANK) < len(self.text):
            line = self._line()
            if self.text.startswith("[", self.at):
                table = self._header(line)
            else:
                self._pair(table)
        return self.lines

    def _line(self) -> int:
        return bisect_right(self.starts, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        if (match := pattern.match(self.text, self.at)) is not None:
            self.at = match.end()
        return self.at

    def _header(self, line: int) -> KeyPath:
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        table = self._inside(self._key())
        self.at += 2 if is_array else 1
        if is_array:
            array = table[:-1] if table and isinstance(table[-1], int) else table
            self.table_arrays[array] = self.table_arrays.get(array, 0) + 1
            self.lines.setdefault(array, line)
            table = (*array, self.table_arrays[array] - 1)
        self.lines.setdefault(table, line)
        return table

    def _inside(self, key: KeyPath) -> KeyPath:
        """Return ``key`` with the newest element's index inserted after each array of tables."""
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self.table_arrays:
                path = (*path, self.table_arrays[path] - 1)
        return path

    def _key(self) -> KeyPath:
        parts: list[str] = []
        while True:
            self._blanks_in_line()
            start = self.at
            if (quoted := _QUOTED.match(self.text, start)) is not None:
                self.at = quoted.end()
                parts.append(tomllib.loads(f"key = {quoted.group()}")["key"])
            else:
                parts.append(self.text[start : self._skip(_BARE_KEY)])
            self._blanks_in_line()
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _blanks_in_line(self) -> None:
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        key = self._key()
        self.at += 1  # ``_key`` stops before the equals sign.
        path = (*table, *key)
        for length in range(len(table) + 1, len(path) + 1):
            self.lines.setdefault(path[:length], line)
        self._blanks_in_line()
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        if self.text.startswith(('"""', "'''"), self.at):
            self._skip(_MULTILINE)
        elif self.text.startswith(('"', "'"), self.at):
            self._skip(_QUOTED)
        elif self.text.startswith("[", self.at):
            self._items(path, "]")
        elif self.text.startswith("{", self.at):
            self._items(path, "}")
        else:
            self._skip(_PLAIN_VALUE)

    def _items(self, path: KeyPath, end: str) -> None:
        self.at += 1
        index = 0
        while self._skip(_BLANK) < len(self.text) and not self.text.startswith(end, self.at):
            if self.text.startswith(",", self.at):
                self.at += 1
                index += 1
            elif end == "}":
                self._pair(path)
            else:
                self.lines[(*path, index)] = self._line()
                self._value((*path, index))
        self.at += 1
