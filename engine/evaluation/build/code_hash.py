"""Hash the machine code in a kernel's library, so that a changed comment in the source does not change the hash.

The hash covers the sections that a loader maps (instructions, constants, initial data), except notes and unwind tables.
For CUDA, the hash also covers these sections of the device code, which nvcc embeds as uncompressed ELF files.

Two libraries with the same hash behave identically. Libraries with different hashes may also behave identically,
because the hash covers function names.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from engine.evaluation.inspect import elf

_FATBIN = ".nv_fatbin"
_LEFT_OUT = (".note", ".eh_frame", _FATBIN, ".nvFatBinSegment", "__nv_")
_DEVICE_SECTIONS = (".text", ".nv.constant", ".nv.info", ".nv.shared", ".nv.global", ".rodata")


def code_hash(library: Path) -> str:
    """Return the hash of the library's code, or "" if the file cannot be read as a kernel's library."""
    digest = hashlib.sha256()
    try:
        for section in elf.sections(library.read_bytes()):
            if section.name == _FATBIN:
                _add_device_code(digest, section.content)
            elif (
                section.flags & elf.Code.ALLOCATED
                and section.kind in (elf.Kind.PROGBITS, elf.Kind.NOBITS)
                and not section.name.startswith(_LEFT_OUT)
            ):
                _add(digest, section)
    except (OSError, *elf.FAULTS):
        return ""
    return digest.hexdigest()[:32]


def _add_device_code(digest: hashlib._Hash, fatbin: bytes) -> None:
    """Add the device code in ``fatbin`` to the hash. Raises ``ValueError`` if ``fatbin`` contains no readable code."""
    found = 0
    for code in elf.device_code(fatbin):
        for section in elf.sections(code):
            if section.name.startswith(_DEVICE_SECTIONS):
                _add(digest, section)
                found += 1
    if not found:
        raise ValueError("the library contains no readable device code")


def _add(digest: hashlib._Hash, section: elf.Section) -> None:
    digest.update(f"\0{section.name}\0{len(section.content)}\0".encode())
    digest.update(section.content)
