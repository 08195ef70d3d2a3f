"""A text in the person's own editor, while the monitor stands aside."""

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

from tui.sanitize import one_line


class EditorError(Exception):
    """The editor could not be started, or has failed; its text is one line for a person."""


def editor_command() -> list[str]:
    """``$VISUAL``, ``$EDITOR``, or the first of the usual ones that is installed. Raises EditorError."""
    for variable in ("VISUAL", "EDITOR"):
        if os.environ.get(variable, "").strip():
            try:
                return shlex.split(os.environ[variable])
            except ValueError as error:
                raise EditorError(f"${variable} is no command: {error}.") from error
    return [next((name for name in ("nano", "vim", "vi") if shutil.which(name)), "vi")]


def edit_text(app: App[Any], text: str, file_name: str) -> str | None:
    """``text`` as saved, or None if it was not changed. Raises EditorError, also where the editor ends with a status
    other than 0 (vim's ``:cq``): what it has saved until then is nobody's wish."""
    with tempfile.TemporaryDirectory(prefix="kernel-tui-") as directory:
        file = Path(directory) / file_name
        file.write_text(text, encoding="utf-8")
        command = [*editor_command(), str(file)]
        if app.is_headless:
            failure = _failure(command)
        else:
            with app.suspend():  # it does not come back from an exception
                failure = _failure(command)
            app.refresh(layout=True)
        if failure is not None:
            raise EditorError(failure)
        try:
            edited = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise EditorError(f"What the editor saved cannot be read: {error}.") from error
    return edited if edited != text else None


def _failure(command: list[str]) -> str | None:
    """Let the person edit; what went wrong, or None. Ctrl-C meanwhile is for the editor."""
    name = one_line(Path(command[0]).name, 40)
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the editor would inherit
    try:
        status = subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"The editor {name} cannot be started: {error.strerror}. Set $EDITOR."
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if status == 0:
        return None
    how = f"with status {status}" if status > 0 else f"by signal {-status}"
    return f"The editor {name} ended {how}."
