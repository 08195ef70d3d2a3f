"""Start a program that imports PyTorch: ``python -m engine.system.fast_start MODULE ARGUMENTS``.

Import MODULE, then call its ``main()``.

PyTorch's import creates 170,000 permanent objects. Without this module, the garbage collector scans them repeatedly.
The scans take a tenth of the import time. Later, each full collection takes 70 ms, possibly while the judge times a
reference. This module therefore turns the collector off during the import and makes it ignore these objects afterward.
The process exits without freeing them, which saves half a second.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in the block, and exclude all objects alive at its end from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> NoReturn:
    """Run MODULE's ``main()`` with ARGUMENTS in ``sys.argv[1:]``, and exit with its return value."""
    del sys.argv[0]
    with uncollected():
        module = import_module(sys.argv[0])
    status: int = module.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
