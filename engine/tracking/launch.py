"""Start the process that sends a session's events to its tracker."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping

from engine.session.store import SessionPaths
from engine.system.python_process import python_command, python_path

MODULE = "engine.tracking.sender"
MISSING = (
    "tracking needs MLflow, which is not installed. Install it: pip install 'kernel-tui[tracking]'. "
    "Then resume the session to send all its metrics"
)
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|XDG_\w+|PYTHON\w+|LD_LIBRARY_PATH|MLFLOW_\w+"
    r"|(?i:\w+_PROXY)|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)
"""Environment variables that MLflow's client needs. The sender inherits only these variables, because the engine's
environment also contains the models' API keys.
"""


def start_sender(paths: SessionPaths) -> subprocess.Popen[bytes] | None:
    """Start the sender, which outlives the engine. Return None if MLflow is not installed. Raises ``OSError``.

    The sender's log is ``tracking.log``.
    """
    if importlib.util.find_spec("mlflow") is None:
        return None
    with (paths.directory / "tracking.log").open("ab") as log:
        return subprocess.Popen(
            python_command(MODULE, str(paths.directory)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=sender_environment(os.environ) | {"PYTHONPATH": python_path()},
            start_new_session=True,
        )


def sender_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environment`` that the sender inherits, without the models' API keys or the engine's
    marker.
    """
    return {name: value for name, value in environment.items() if _INHERITED.fullmatch(name)}
