"""Make a test host unlike the others: another release of kernel-tui, another compiler, or one that builds nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.hosts import ROOT

_GXX = shutil.which("g++") or "g++"
NEWER = f"""\
#!/bin/sh
[ "$1" = --version ] && exec echo "g++ (a test) 99.1.0 Free Software Foundation"
exec {_GXX} "$@"
"""
"""A compiler with another version."""
BROKEN = f"""\
#!/bin/sh
[ "$1" = --version ] && exec {_GXX} --version
echo "ld: error: cannot find -lgomp" >&2
exit 1
"""
"""A compiler that is there and cannot link."""


def other_release(directory: Path) -> Path:
    """Copy this program into ``directory`` as another release, whose heartbeats this one cannot read."""
    for package in ("engine", "tui", "kernel_tui", "problems"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    version = directory / "engine" / "__init__.py"
    version.write_text(f'{version.read_text()}\n__version__ = "99.1.0"\n')
    messages = directory / "engine" / "cluster" / "messages.py"
    named = 'Struct, frozen=True, tag="beat"'
    assert named in messages.read_text()
    messages.write_text(messages.read_text().replace(named, f'{named}, rename={{"builders": "slots"}}'))
    return directory


def compiler(home: Path, script: str) -> str:
    """Write a compiler for the host with the directory ``home``, and return its path."""
    file = home / "toolchain" / "bin" / "g++"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    file.chmod(0o755)
    return str(file)
