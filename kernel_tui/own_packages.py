"""Import this program's ``engine`` in a user's process, where the user's packages may have the same name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).resolve().parent
_ROOT = str(_HERE / "_packages" if (_HERE / "_packages").is_dir() else _HERE.parent)
"""The directory of ``engine``: an installed wheel keeps it under ``_packages``."""
_LOCK = threading.RLock()
_OURS: dict[str, ModuleType] = {}
"""This program's ``engine`` modules, stored here while ``sys.modules`` contains the user's."""


@contextmanager
def own_packages() -> Iterator[None]:
    """Make ``engine`` this program's package inside the block, and restore the user's modules after the block."""
    with _LOCK:
        if _is_ours(sys.modules.get("engine")):  # This is our own process, or a nested block.
            yield
            return
        theirs = _taken()
        sys.modules.update(_OURS)
        sys.path.insert(0, _ROOT)
        try:
            yield
        finally:
            sys.path.remove(_ROOT)
            _OURS.update(_taken())
            sys.modules.update(theirs)


def _taken() -> dict[str, ModuleType]:
    """Remove the modules named ``engine`` from ``sys.modules``, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == "engine"]
    return {name: sys.modules.pop(name) for name in names}


def _is_ours(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().parents[1] == Path(_ROOT)
