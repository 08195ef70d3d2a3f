"""Run one viewer's monitor, with ``python -m tui.web.viewer DIRECTORY [--writable]``.

The web server starts this process for each page, with Textual's web driver in the environment. The process ends when
the page closes or the server stops.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from engine.session.store import SessionPaths

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # The driver writes packets to the real stdout. Any other text there would break the protocol.
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  open until the process ends
    from tui.monitor.app import run_monitor

    return run_monitor(SessionPaths.at(Path(arguments[0])), read_only="--writable" not in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
