"""Create expensive fixtures once per test run, in whichever process needs them first."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` fills once for all processes of a test run."""
    place = shared_folder() / name
    with (shared_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            half = Path(tempfile.mkdtemp(dir=shared_folder()))
            make(half)
            half.rename(place)
    return place


@cache
def shared_folder() -> Path:
    """Return a folder that all processes of a run share. The last process removes the folder."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"made-once-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    users = (folder / "users").open("w")
    fcntl.flock(users, fcntl.LOCK_SH)
    atexit.register(_leave, folder, users)
    return folder


def _leave(folder: Path, users: IO[str]) -> None:
    """Remove the folder in the last process."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    shutil.rmtree(folder, ignore_errors=True)
