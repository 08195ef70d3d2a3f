"""What a shared library says of itself: sections, needed libraries, symbols that it takes from others.

Format: System V ABI, chapters 4 and 5; 64-bit, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

MAGIC = b"\x7fELF\x02\x01"
NOBITS = 8
_STRTAB, _DYNAMIC, _DYNSYM = 3, 6, 11
_DT_NEEDED, _UNDEFINED = 1, 0
FAULTS = (ValueError, IndexError, OverflowError, struct.error)
"""What reading a file that is no ELF file raises."""


class Imports(Struct, frozen=True):
    """``libraries``: that the loader loads with it. ``symbols``: names that it takes from them, as they are mangled."""

    libraries: tuple[str, ...]
    symbols: tuple[str, ...]


class Section(Struct, frozen=True):
    """``content`` of a section that takes no room in the file (``NOBITS``) is its size in words."""

    name: str
    flags: int
    kind: int
    content: bytes


def sections(elf: bytes) -> Iterator[Section]:
    """All sections. Raises one of ``FAULTS``."""
    if not elf.startswith(MAGIC):
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry_size) for index in range(count)]
    names = headers[names_at][4]
    for name_at, kind, flags, _, offset, size in headers:
        content = elf[offset : offset + size] if kind != NOBITS else str(size).encode()
        yield Section(_text(elf, names + name_at), flags, kind, content)


def imports(elf: bytes) -> Imports:
    """What the file needs of others. Raises one of ``FAULTS``."""
    found = {section.name: section for section in sections(elf) if section.kind in (_STRTAB, _DYNAMIC, _DYNSYM)}
    if not {".dynamic", ".dynsym", ".dynstr"} <= found.keys():
        return Imports((), ())
    names = found[".dynstr"].content
    libraries = [
        _text(names, at) for tag, at in struct.iter_unpack("<QQ", found[".dynamic"].content) if tag == _DT_NEEDED
    ]
    entries = struct.iter_unpack("<IBBHQQ", found[".dynsym"].content)
    symbols = [_text(names, name) for name, _, _, section, _, _ in entries if section == _UNDEFINED and name]
    return Imports(tuple(libraries), tuple(symbols))


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode(errors="replace")
