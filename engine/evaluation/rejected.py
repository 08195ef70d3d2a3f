"""How a check of the judge says that a kernel has failed it, and what a verdict says of one whose process has ended."""

from __future__ import annotations

from engine.evaluation.sandbox import End
from engine.verdict import Status

STATUS_OF_END: dict[End, Status] = {
    "crashed": "crashed",
    "timeout": "timeout",
    "memory": "memory",
    "forbidden": "forbidden",
    "cancelled": "cancelled",
    "launch_failed": "crashed",
    "not_loaded": "build_error",
    "error": "error",
}


class Rejected(Exception):
    """A check failed: the verdict's status, the pattern's name and one sentence.

    ``check``: its name, where it is not the next one in order.
    """

    def __init__(self, status: Status, pattern: str | None, reason: str, check: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.pattern, self.reason, self.check = status, pattern, reason, check
