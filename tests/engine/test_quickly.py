"""Modules with many imports start without garbage collection and exit without cleanup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODULE = """
import atexit, gc, sys
DURING = gc.isenabled()
def main():
    atexit.register(print, "taken down")
    print(DURING, gc.isenabled(), gc.get_freeze_count() > 0, sys.argv[1:])
    return 3
"""


def test_a_module_is_imported_uncollected_and_run(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(MODULE)
    root = Path(__file__).parents[2]
    path = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}

    command = [sys.executable, "-m", "engine.system.fast_start", "large", "first", "second"]
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, "False True True ['first', 'second']\n"), done.stderr
