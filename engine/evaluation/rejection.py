"""The exception that a failed check raises, and the verdict's status for each way that a kernel's process can end."""

from __future__ import annotations

from engine.evaluation.sandbox.post_mortem import End
from engine.session.records.verdict import Status

STATUS_OF_END: dict[End, Status] = {
    "crashed": "crashed",
    "timeout": "timeout",
    "memory": "memory",
    "forbidden": "forbidden",
    "cancelled": "cancelled",
    "launch_failed": "crashed",
    "wrong_output": "wrong",
    "not_loaded": "build_error",
    "error": "error",
}


class Rejected(Exception):
    """A failed check.

    ``status``: the verdict's status. ``pattern``: the name of a known failure pattern, or None. ``reason``: one
    sentence.
    """

    def __init__(self, status: Status, pattern: str | None, reason: str) -> None:
        super().__init__(reason)
        self.status, self.pattern, self.reason = status, pattern, reason
