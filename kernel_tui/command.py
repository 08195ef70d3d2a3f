"""Entry point of the ``kernel-tui`` command."""

from __future__ import annotations

import sys
from pathlib import Path

_PACKAGES = Path(__file__).parent / "_packages"


def main() -> None:
    """Run the command. An installed wheel keeps ``engine``, ``tui`` and ``problems`` under ``_packages``."""
    if _PACKAGES.is_dir():
        sys.path.insert(0, str(_PACKAGES))
    from tui.cli.main import main as run

    run()
