"""Edit a text in the user's editor while the monitor is suspended."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from textual.app import App

from tui.text.sanitize import one_line


class EditorError(Exception):
    """The editor could not start, or failed. The message is one user-facing line."""


def editor_command() -> list[str]:
    """Return ``$VISUAL``, ``$EDITOR``, or the first common editor that is installed. Raises EditorError."""
    for variable in ("VISUAL", "EDITOR"):
        if os.environ.get(variable, "").strip():
            try:
                return shlex.split(os.environ[variable])
            except ValueError as error:
                raise EditorError(f"${variable} is not a valid command: {error}.") from error
    return [next((name for name in ("nano", "vim", "vi") if shutil.which(name)), "vi")]


def edit_text(app: App[Any], text: str, file_name: str) -> str | None:
    """Edit ``text``. Return the saved text, or None if it did not change.

    Raises EditorError, including when the editor exits with a nonzero status (vim's ``:cq``).
    """
    if app.is_web:
        raise EditorError("The editor needs a terminal, but this monitor runs in a browser.")
    with tempfile.TemporaryDirectory(prefix="kernel-tui-") as directory:
        file = Path(directory) / file_name
        file.write_text(text, encoding="utf-8")
        command = [*editor_command(), str(file)]
        if app.is_headless:
            failure = _failure(command)
        else:
            with app.suspend():  # An exception inside would leave the app suspended.
                failure = _failure(command)
            app.refresh(layout=True)
        if failure is not None:
            raise EditorError(failure)
        try:
            edited = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise EditorError(f"Cannot read the saved file: {error}.") from error
    return edited if edited != text else None


def _failure(command: list[str]) -> str | None:
    """Run the editor. Return an error message, or None on success.

    While the editor runs, the monitor ignores Ctrl-C.
    """
    name = one_line(Path(command[0]).name, 40)
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)  # The editor would inherit SIG_IGN, but not this handler.
    try:
        status = subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"Cannot start the editor {name}: {error.strerror}. Set $EDITOR."
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if status == 0:
        return None
    how = f"with status {status}" if status > 0 else f"by signal {-status}"
    return f"The editor {name} ended {how}."
