"""Start the process that sends a session's events to its tracker."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Collection

from engine.session.store import SessionPaths
from engine.system.python_process import python_command, python_path

MODULE = "engine.tracking.sender"
MISSING = (
    "tracking needs MLflow, which is not installed. Install it: pip install 'kernel-tui[tracking]'. "
    "Then resume the session: its metrics are sent from the beginning"
)


def start_sender(paths: SessionPaths, without: Collection[str] = ()) -> subprocess.Popen[bytes] | None:
    """Start the sender, which outlives the engine. Return None if MLflow is not installed. Raises ``OSError``.

    ``without`` names environment variables that the sender must not inherit. Its log is ``tracking.log``.
    """
    if importlib.util.find_spec("mlflow") is None:
        return None
    environment = {name: value for name, value in os.environ.items() if name not in without}
    with (paths.directory / "tracking.log").open("ab") as log:
        return subprocess.Popen(
            python_command(MODULE, str(paths.directory)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment | {"PYTHONPATH": python_path()},
            start_new_session=True,
        )
