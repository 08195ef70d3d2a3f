"""The packed form of a session's database: ``session.db.xz``, usually less than a tenth of the size of ``session.db``.

The kernels, verdicts and build logs of a search contain much repeated text. xz finds repetitions across the whole
database, but only in uncompressed data. A packed database therefore stores its blobs without compression: as a zlib
stream of level 0, which readers decompress like any other blob.

Readers open a private copy of the unpacked database. An engine replaces the packed file with ``session.db``, because it
must write.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from pathlib import Path
from types import ModuleType

from engine.session.store.errors import SessionDamaged, SessionError, of_os
from engine.session.store.paths import SessionPaths, sync_directory

LARGEST_BYTES = 1 << 30
"""Maximum size of a database to pack or unpack, enough for about a million events. The limit stops a small packed file
from filling the disk.
"""
_MEMORY_BYTES = 128 << 20
"""Memory limit of the decompressor. A file packed with preset 9 needs 65 MiB."""
_PRESET = 6
"""Preset of xz. Preset 9 would take twice the time and four times the memory to make files 2% smaller."""
_CHUNK_BYTES = 1 << 20


def pack(database: Path, target: Path) -> None:
    """Write ``database`` to ``target`` in packed form. No other connection may use ``database``, which this function
    changes.

    Raises SessionError, sqlite3.Error, OSError.
    """
    connection = sqlite3.connect(database, isolation_level=None)
    try:
        connection.execute("BEGIN")
        for digest, compressed in connection.execute("SELECT digest, compressed FROM blob").fetchall():
            plain = zlib.compress(zlib.decompress(compressed), 0)
            connection.execute("UPDATE blob SET compressed = ? WHERE digest = ?", (plain, digest))
        connection.execute("COMMIT")
        connection.execute("VACUUM")
    finally:
        connection.close()
    if database.stat().st_size > LARGEST_BYTES:
        raise SessionError(f"{target}: the session is too large to pack (above {LARGEST_BYTES >> 30} GiB).", target)
    with _lzma(target).open(target, "wb", preset=_PRESET) as packed, database.open("rb") as file:
        while content := file.read(_CHUNK_BYTES):
            packed.write(content)


def unpack(packed: Path, target: Path) -> None:
    """Write the database in ``packed`` to ``target``. Raises SessionDamaged, OSError."""
    lzma = _lzma(packed)
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY_BYTES)
    size = 0
    with packed.open("rb") as source, target.open("wb") as file:
        while not decompressor.eof:
            content = source.read(_CHUNK_BYTES) if decompressor.needs_input else b""
            try:
                plain = decompressor.decompress(content, _CHUNK_BYTES)
            except lzma.LZMAError as error:
                raise _damaged(packed, str(error)) from error
            if not content and not plain and decompressor.needs_input and not decompressor.eof:
                raise _damaged(packed, "the file is truncated")
            size += file.write(plain)
            if size > LARGEST_BYTES:
                raise _damaged(packed, f"its content is larger than {LARGEST_BYTES >> 30} GiB")


def unpack_in_place(paths: SessionPaths) -> None:
    """Replace the packed file with the database. The caller must hold the session's write lock.

    The database appears only when it is complete, and takes precedence over the packed file. Raises SessionError.
    """
    temporary = paths.database.with_name(f".{paths.database.name}.{os.getpid()}.tmp")
    try:
        if not paths.database.exists():
            unpack(paths.packed, temporary)
            connection = sqlite3.connect(temporary)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            finally:
                connection.close()
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(paths.database)
            sync_directory(paths.directory)
        paths.packed.unlink(missing_ok=True)
    except OSError as error:
        raise of_os(error, paths.database) from error
    except sqlite3.Error as error:
        raise _damaged(paths.packed, str(error)) from error
    finally:
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                temporary.with_name(temporary.name + ending).unlink()


def _lzma(path: Path) -> ModuleType:
    """Import ``lzma`` only for a packed session, because some builds of Python lack this module."""
    try:
        import lzma
    except ImportError as error:
        raise SessionError(
            f"{path}: packed sessions need Python's module lzma, which this Python lacks ({error}). Use a Python that "
            "was built with liblzma.",
            path,
        ) from error
    return lzma


def _damaged(packed: Path, said: str) -> SessionDamaged:
    return SessionDamaged(f"{packed}: the packed session is damaged ({said}). Copy or download it again.", packed)
