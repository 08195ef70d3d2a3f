"""A digest of what a kernel's library does: equal machine code has equal digests, whatever comments its source had.

Hashed are the sections that a loader maps (instructions, constants, initial data), without notes and unwinding tables;
for CUDA the same of the device code, which nvcc embeds as ELF files of their own (uncompressed, as we build). Two
libraries with one digest do the same; the reverse is not promised: names of functions are part of it.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from engine.evaluation import elf

_FATBIN = ".nv_fatbin"
_ALLOCATED = 0x2
_PROGBITS = 1
_CUDA_MACHINE = 190
_LEFT_OUT = (".note", ".eh_frame", _FATBIN, ".nvFatBinSegment", "__nv_")
_DEVICE_SECTIONS = (".text", ".nv.constant", ".nv.info", ".nv.shared", ".nv.global", ".rodata")


def code_hash(library: Path) -> str:
    """The digest, or "" for a file that is no library as we build them."""
    digest = hashlib.sha256()
    try:
        for section in elf.sections(library.read_bytes()):
            if section.name == _FATBIN:
                _add_device_code(digest, section.content)
            elif (
                section.flags & _ALLOCATED
                and section.kind in (_PROGBITS, elf.NOBITS)
                and not section.name.startswith(_LEFT_OUT)
            ):
                _add(digest, section)
    except (OSError, *elf.FAULTS):
        return ""
    return digest.hexdigest()[:32]


def _add_device_code(digest: hashlib._Hash, fatbin: bytes) -> None:
    """Raises ValueError where there is none that can be read."""
    found, place = 0, fatbin.find(elf.MAGIC)
    while place >= 0:
        code = fatbin[place:]
        if struct.unpack_from("<H", code, 0x12)[0] == _CUDA_MACHINE:
            for section in elf.sections(code):
                if section.name.startswith(_DEVICE_SECTIONS):
                    _add(digest, section)
                    found += 1
        place = fatbin.find(elf.MAGIC, place + 1)
    if not found:
        raise ValueError("no device code that can be read")


def _add(digest: hashlib._Hash, section: elf.Section) -> None:
    digest.update(f"\0{section.name}\0{len(section.content)}\0".encode())
    digest.update(section.content)
