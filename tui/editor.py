"""A text in the person's own editor, while the monitor stands aside."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from textual.app import App


def editor_command() -> list[str]:
    """``$VISUAL``, ``$EDITOR``, or the first of the usual ones that is installed."""
    for variable in ("VISUAL", "EDITOR"):
        if os.environ.get(variable):
            return shlex.split(os.environ[variable])
    return [next((name for name in ("nano", "vim", "vi") if shutil.which(name)), "vi")]


def edit_text(app: App[Any], text: str, file_name: str) -> str | None:
    """``text`` as saved, or None if it was not changed. Raises OSError if there is no editor."""
    with tempfile.TemporaryDirectory(prefix="kernel-tui-") as directory:
        file = Path(directory) / file_name
        file.write_text(text, encoding="utf-8")
        command = [*editor_command(), str(file)]
        if app.is_headless:
            subprocess.run(command, check=False)
        else:
            with app.suspend():
                subprocess.run(command, check=False)
            app.refresh(layout=True)
        edited = file.read_text(encoding="utf-8", errors="replace")
    return edited if edited != text else None
