"""A digest of what a kernel's library does: equal machine code has equal digests, whatever comments its source had.

Hashed are the sections that a loader maps (instructions, constants, initial data), without notes and unwinding tables;
for CUDA the same of the device code, which nvcc embeds as ELF files of their own (uncompressed, as we build). Two
libraries with one digest do the same; the reverse is not promised: names of functions are part of it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

_ELF = b"\x7fELF\x02\x01"
_FATBIN = ".nv_fatbin"
_ALLOCATED = 0x2
_PROGBITS, _NOBITS = 1, 8
_CUDA_MACHINE = 190
_LEFT_OUT = (".note", ".eh_frame", _FATBIN, ".nvFatBinSegment", "__nv_")
_DEVICE_SECTIONS = (".text", ".nv.constant", ".nv.info", ".nv.shared", ".nv.global", ".rodata")


def code_hash(library: Path) -> str:
    """The digest, or "" for a file that is no library as we build them."""
    digest = hashlib.sha256()
    try:
        elf = library.read_bytes()
        for name, flags, kind, content in _sections(elf):
            if name == _FATBIN:
                _add_device_code(digest, content)
            elif flags & _ALLOCATED and kind in (_PROGBITS, _NOBITS) and not name.startswith(_LEFT_OUT):
                _add(digest, name, content)
    except (OSError, ValueError, IndexError, OverflowError, struct.error):
        return ""
    return digest.hexdigest()[:32]


def _add_device_code(digest: hashlib._Hash, fatbin: bytes) -> None:
    """Raises ValueError where there is none that can be read."""
    found, place = 0, fatbin.find(_ELF)
    while place >= 0:
        elf = fatbin[place:]
        if struct.unpack_from("<H", elf, 0x12)[0] == _CUDA_MACHINE:
            for name, _, _, content in _sections(elf):
                if name.startswith(_DEVICE_SECTIONS):
                    _add(digest, name, content)
                    found += 1
        place = fatbin.find(_ELF, place + 1)
    if not found:
        raise ValueError("no device code that can be read")


def _add(digest: hashlib._Hash, name: str, content: bytes) -> None:
    digest.update(f"\0{name}\0{len(content)}\0".encode())
    digest.update(content)


def _sections(elf: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    """Name, flags, kind and content of a 64-bit little-endian ELF file's sections. Raises ValueError, struct.error."""
    if not elf.startswith(_ELF):
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + index * entry_size) for index in range(count)]
    names = headers[names_at][4]
    for name_at, kind, flags, _, offset, size in headers:
        start = names + name_at
        name = elf[start : elf.index(b"\0", start)].decode(errors="replace")
        yield name, flags, kind, elf[offset : offset + size] if kind != _NOBITS else str(size).encode()
