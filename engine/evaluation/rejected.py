"""How a check of the judge says that a kernel has failed it."""

from __future__ import annotations

from engine.verdict import Status


class Rejected(Exception):
    """A check failed: the verdict's status, the pattern's name and one sentence.

    ``check``: its name, where it is not the next one in order.
    """

    def __init__(self, status: Status, pattern: str | None, reason: str, check: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.pattern, self.reason, self.check = status, pattern, reason, check
