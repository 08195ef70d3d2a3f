"""Start what imports PyTorch: ``python -m engine.quickly MODULE ARGUMENTS`` imports MODULE, then calls its ``main()``.

PyTorch's import makes 170,000 objects that stay. Python's garbage collector would look through them again and again
meanwhile, a tenth of the time, and for 70 ms each time that it collects everything afterwards, which may be while a
reference is timed. It is off during the import, and leaves alone from then on what was made. Nor is all of that taken
down at the end, which takes half a second: the process is gone as soon as ``main()`` has returned.
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
    """No garbage collection within; what lives at the end is never looked through again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> NoReturn:
    """MODULE's ``main()`` finds its ARGUMENTS in ``sys.argv[1:]`` and gives the exit code."""
    del sys.argv[0]
    with uncollected():
        module = import_module(sys.argv[0])
    status: int = module.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
