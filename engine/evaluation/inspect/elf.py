"""Read a shared library's sections, its dependencies, and its imported and defined symbols.

Source of the format: System V ABI, chapters 4 and 5. Files must be 64-bit and little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct


class Kind(IntEnum):
    """Section types (``SHT_``)."""

    PROGBITS = 1
    STRTAB = 3
    DYNAMIC = 6
    NOBITS = 8
    DYNSYM = 11


class Code(IntEnum):
    """Constants of the ELF format that are not section types."""

    UNDEFINED = 0
    NEEDED = 1
    ALLOCATED = 2
    CUDA_MACHINE = 190


MAGIC = b"\x7fELF\x02\x01"
FAULTS = (ValueError, IndexError, OverflowError, struct.error)
"""Exceptions that the functions raise if a file is not an ELF file."""


class Symbols(Struct, frozen=True):
    """A library's symbols.

    ``libraries``: libraries that the loader loads with the file. ``imported``: mangled names that the file imports from
    these libraries. ``defined``: names that the file defines.
    """

    libraries: tuple[str, ...] = ()
    imported: tuple[str, ...] = ()
    defined: tuple[str, ...] = ()


class Section(Struct, frozen=True):
    """One section. If the file stores no content (``NOBITS``), ``content`` is the section's size as text."""

    name: str
    flags: int
    kind: int
    content: bytes


def sections(elf: bytes) -> Iterator[Section]:
    """Yield all sections. Raises one of ``FAULTS``."""
    if not elf.startswith(MAGIC):
        raise ValueError("the file is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry_size) for index in range(count)]
    names = headers[names_at][4]
    for name_at, kind, flags, _, offset, size in headers:
        content = elf[offset : offset + size] if kind != Kind.NOBITS else str(size).encode()
        yield Section(_text(elf, names + name_at), flags, kind, content)


def device_code(fatbin: bytes) -> Iterator[bytes]:
    """Yield each CUDA ELF file in the ``.nv_fatbin`` section. Each yielded file includes the rest of the section."""
    place = fatbin.find(MAGIC)
    while place >= 0:
        code = fatbin[place:]
        if struct.unpack_from("<H", code, 0x12)[0] == Code.CUDA_MACHINE:
            yield code
        place = fatbin.find(MAGIC, place + 1)


def symbols(elf: bytes) -> Symbols:
    """Return the file's dependencies and its imported and defined symbols. Raises one of ``FAULTS``."""
    wanted = (Kind.STRTAB, Kind.DYNAMIC, Kind.DYNSYM)
    found = {section.name: section.content for section in sections(elf) if section.kind in wanted}
    if not {".dynamic", ".dynsym", ".dynstr"} <= found.keys():
        return Symbols()
    names = found[".dynstr"]
    libraries = [_text(names, at) for tag, at in struct.iter_unpack("<QQ", found[".dynamic"]) if tag == Code.NEEDED]
    imported: list[str] = []
    defined: list[str] = []
    for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", found[".dynsym"]):
        (imported if section == Code.UNDEFINED else defined).append(_text(names, name))
    return Symbols(tuple(libraries), tuple(filter(None, imported)), tuple(defined))


def _text(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode(errors="replace")
