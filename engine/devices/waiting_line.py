"""Order the work that waits for a device, so that a judge rarely opens a problem again.

A judge keeps only a few problems open, because their buffers use gigabytes. Opening a problem again takes longer than
most verdicts. Therefore, work may overtake older work if the device already has its problem open. ``MOST_OVERTAKEN``
limits how often other work may overtake the same kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

MOST_OVERTAKEN = 8
"""Number of times that other work may overtake a waiting kernel. Opening a problem takes as long as two or three
verdicts, so more batching would gain little.
"""


class KeptProblems(Collection[str]):
    """The problems that a judge keeps open: the last ``most`` problems that the judge used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._problems: list[str] = []

    def add(self, problem: str) -> None:
        """Record that the judge used ``problem``."""
        self._problems = [*(one for one in self._problems if one != problem), problem][-self._most :]

    def clear(self) -> None:
        self._problems = []

    def __contains__(self, problem: object) -> bool:
        return problem in self._problems

    def __iter__(self) -> Iterator[str]:
        return iter(self._problems)

    def __len__(self) -> int:
        return len(self._problems)


class Waiting:
    """Work that waits for a device.

    ``ticket``: older work has a smaller number. ``problem``: the problem to open, or None. ``only``: the only device
    that can do the work, or None if any device can.
    """

    def __init__(self, ticket: int, problem: str | None, only: object | None = None) -> None:
        self.ticket, self.problem, self.only = ticket, problem, only
        self.overtaken = 0


def first_in_line(line: Iterable[Waiting], here: Container[str], elsewhere: Container[str] = ()) -> Waiting:
    """Return the work that a free device should do next. ``line`` must not be empty.

    ``here``: the problems that the device has open. ``elsewhere``: the problems that other devices have open. Work that
    other work has overtaken the maximum number of times comes first. Next comes work on problems that are open here,
    then work on problems that are not open on any device, then the rest. Within each group, older work comes first.
    """

    def order(one: Waiting) -> tuple[int, int]:
        if one.overtaken >= MOST_OVERTAKEN:
            return 0, one.ticket
        if one.problem is None or one.problem in here:
            return 1, one.ticket
        return 3 if one.problem in elsewhere else 2, one.ticket

    return min(line, key=order)


def leave_line(line: list[Waiting], served: Waiting) -> None:
    """Remove the work that a device has taken, and record that it overtook the older work."""
    line.remove(served)
    for one in line:
        one.overtaken += one.ticket < served.ticket
