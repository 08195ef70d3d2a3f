"""Whether a runner's clock can be true. It is the kernel's own, so nothing that it says is believed unchecked.

Accounts that are not the kernel's: the judge's clock around each call, the processor time that the system counts for
the kernel's process, and the judge's clock around many calls in a row, on the same buffers and on buffers of their
own, on a GPU queued before their inputs are there. Each one alone can be disturbed by other programs on the machine,
or be evaded by a kernel that lies in some calls only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NoReturn

from msgspec import Struct

from engine.evaluation.control import Control
from engine.evaluation.messages import JudgeSettings
from engine.evaluation.neighbours import Neighbours
from engine.evaluation.rejected import Rejected
from engine.evaluation.timing import Pairs
from engine.verdict import BUSY

MISREPORT = "misreports its time"
BETWEEN = "works between the calls"

_ORDER_SAMPLES, _LEAST_OF_AN_ORDER = 8, 6
_IDLE_CALL_MS = 0.6
"""Processor time that a runner may use for a call beside the kernel, where no empty kernel tells: messages, waking
threads."""
_BETWEEN_CALLS_MS = 0.3
"""Processor time that a runner may use while no call is in progress, in the median, beside what an empty kernel is
charged with: it is stopped then. Honest ones are stopped late by milliseconds now and then."""
_LEAST_CHARGED = 0.1
"""The quantile that counts on a busy machine: time that other virtual machines took is charged to some calls only."""
_CONTROLS = 1.2
"""A call may cost so many times what one of an empty kernel does just now, and ``_BESIDE_MS`` more: its data have left
the caches. Seen of honest kernels: 0.8 to 1.25 times, idle and at a load of 3; on an H200 up to 0.15 ms more. There
queued calls tell more precisely."""
_BESIDE_MS = {"cpu": 0.08, "cuda": 0.2}
_HIDDEN_QUANTILE, _HIDDEN_SHARE = 0.2, 0.08
"""Which of the calls is looked at for what it took beside its own clock, and how much of that clock may be missing."""
_WARMING = 1.25
"""What a call takes that comes first, in units of the one that is timed."""
_CALL_OVERHEAD_MS = {"cpu": 0.45, "cuda": 1.5}
"""What a call may cost beside the kernel as seen from the judge, where no empty kernel tells: two wake-ups, and on a
GPU the eviction of its cache."""
_BATCH_MS, _MOST_IN_A_ROW = 12.0, {"cpu": 2000, "cuda": 64}
"""Calls in a row are as many as take so long by the kernel's own clock, but no more than so many."""
_BATCHES, _BATCHES_BUSY = 8, 24
"""How often calls in a row may be repeated for one undisturbed time; the second where other programs disturb."""
_LONGER = 1.3
"""Calls in a row may take so many times the median of single ones; their data is warm, so they take less."""
_EACH_MS = {"cpu": 0.004, "cuda": 0.05}
"""What the runner's loop takes for each of them."""
_TINY_MS = 0.05
"""Of shorter kernels that is a share that counts: on a CPU it is what an empty kernel's calls take beside their clock
just now, if that is more. Seen of an honest kernel of 0.0013 ms on a slow host: 0.011 for all of it."""
_MODULE_EACH_MS = {"cpu": 0.05, "cuda": 0.15}
"""The same of a ``.py`` kernel: on a GPU Python launches what it is made of. Seen: 0.13 ms for operators of 0.03 ms."""
_ADDS_UP = 1.1
"""A row may take so many times the sum of what its calls take by the kernel's own clock."""
_ROW_MS = 6.0
"""The same of calls on buffers of their own."""
_ROW_LONGER = 1.6
"""As ``_LONGER``, of calls on buffers of their own, which are colder; seen of honest kernels."""
_ROW_UP_TO_MS = 1.0
"""What a clock can hide in longer calls without being found out by single ones is less than a row would show."""
_QUEUED_MS = 2.0
"""The same of queued calls."""
_QUEUED_LONGER, _UNQUEUED_SHARE = 1.1, 0.4
"""As ``_LONGER``, of queued calls: what one writes may stay in the cache, what many write goes to memory. And the share
of what an event pair says of next to nothing that none of them takes, as events lie around all of them. Seen of honest
kernels on an H200 that take 7 to 16 microseconds: 1.9 to 3.0 less, which are shares of 0.4 to 0.6."""
_QUEUED_BESIDE_MS = 0.2
"""For all of them: the GPU's change from one process to another costs more when there was work. Seen: up to 0.2 ms."""
_FEWER = 8
"""So many times fewer are queued where the first number was too many."""
_LEAST_SHARE = 0.85
"""No kernel takes less than this share of what an event pair says of next to nothing."""
_COLDER, _COLDER_MS = 1.5, {"cpu": 0.05, "cuda": 0.05}
"""A kernel may read its buffers more than once before they are in the caches; and it has to find their pages
anew. Seen of honest kernels of 0.012 ms on a CPU: 0.03 ms."""
_COLD_MEASURED = 3
"""How often what that costs is measured where it decides: other programs may have cooled the warm ones as well."""
_MOST_DRIFT = 2.0
_MOST_CHARGED, _MOST_DISTURBED = 2.0, 3.0
"""So many times what is allowed is not taken by the least disturbed of many calls, however busy the machine is: of
single ones beside those of an empty kernel, and of calls in a row."""
_OVERLOADED = 0.5
"""Where other programs have more of the processor than this, no call of many threads need ever be undisturbed."""
_MODULE_CALL_MS = 0.2
"""What Python does around the ``forward`` of a ``.py`` kernel: arguments, weights, checks of what came back."""
_MODULE_ROW_MS = 0.1
"""The same of calls in a row, where nothing has to wake up."""
_COPY_SHARE = 1.5
"""A ``.py`` kernel's outputs are copied after its clock has stopped: what that may take beside the judge's own copy."""


class Row(Struct, frozen=True):
    """``count`` calls in a row, milliseconds of all: by the kernel's own clock, and from outside."""

    count: int
    own_ms: float
    wall_ms: float

    @property
    def each_ms(self) -> float:
        return self.wall_ms / self.count


class Clock(Struct, frozen=True):
    """The checks of one kernel's clock.

    ``control``: what calls of an empty kernel cost, made beside the kernel's own.
    ``copies_ms``: for a ``.py`` kernel what the judge takes to copy the outputs, where its runner does so after its
    clock has stopped, else 0; None for the other forms.
    """

    settings: JudgeSettings
    neighbours: Neighbours
    control: Control
    copies_ms: float | None
    warm: bool = False
    """Whether each of its single calls came with another right before it: a short ``.py`` kernel's on a GPU."""
    least_ms: float = 0.0
    """What the same clock says of work that is next to nothing."""
    in_heat: bool = False
    """Whether what is doubted here leads to another judgement, and what is excused is believed."""

    @property
    def times_from_outside(self) -> bool:
        """Whether a kernel whose calls cannot be queued is given the time seen from outside: for Python that would
        be unfair."""
        return self.settings.kind == "cuda" and self.copies_ms is None

    @property
    def beside_ms(self) -> float:
        """What a call does outside of its own clock by right."""
        if self.copies_ms is None:
            return 0.0
        # A machine that keeps a call waiting keeps Python waiting as well.
        return _MODULE_CALL_MS + self.control.beside_at(_HIDDEN_QUANTILE) + _COPY_SHARE * self.copies_ms

    def check_processor(self, pairs: Pairs) -> None:
        """On a CPU the system counts what the process used: more than its calls can have, and it hides work.

        That is a clock that lies, or threads that go on working while no call is in progress. Each order of the pairs
        is looked at by itself too: a kernel may have guessed it. Raises ``Rejected``.
        """
        if self.settings.kind != "cpu":
            return
        by_order = [
            [ms for ms, first in zip(pairs.between_ms, pairs.reference_first, strict=True) if first is wanted]
            for wanted in (True, False)
        ]
        few = min(map(len, by_order)) < _LEAST_OF_AN_ORDER
        for between_ms in [pairs.between_ms] if few else by_order:
            found_ms = median(between_ms) if between_ms else 0.0
            right_ms = _CONTROLS * self.control.between_at(0.5) + _BETWEEN_CALLS_MS
            if found_ms > right_ms:
                found = f"used {found_ms:.4g} ms of processor time between two calls (median)"
                self._accuse(BETWEEN, found, excusable=found_ms < _MOST_CHARGED * right_ms)
        own_ms, used_ms, order = pairs.kernel_ms, pairs.used_ms, pairs.reference_first
        threads, quantile = self.settings.threads, _LEAST_CHARGED if self.busy else 0.5
        calls = list(zip(own_ms, used_ms, order, strict=True))
        for kind in (None, True, False):
            hidden = sorted(used - 1.25 * threads * own for own, used, mine in calls if kind in (None, mine))
            if len(hidden) < min(_ORDER_SAMPLES, len(calls)):
                continue
            found_ms = hidden[int(quantile * len(hidden))]
            right_ms = _IDLE_CALL_MS
            if self.control.used_ms:
                right_ms = _CONTROLS * self.control.used_at(quantile) + _BESIDE_MS[self.settings.kind]
            right_ms += threads * self.beside_ms
            if found_ms <= right_ms:
                continue
            outside = f"it used {median(used_ms):.4g} ms of processor time on {threads} threads (median)"
            self._misreports(median(own_ms), outside, excusable=found_ms < _MOST_CHARGED * right_ms)

    def check_calls(self, own_ms: Sequence[float], wall_ms: Sequence[float]) -> None:
        """Single calls by the judge's clock. Raises ``Rejected``."""
        # A low quantile, so that a machine that delays some answers does not make an honest kernel a liar. On a busy
        # one the least delayed call, while the quantile still counts for the empty kernel.
        pairs = zip(own_ms, wall_ms, strict=True)
        beside = _of_the_fastest([(own, wall - own) for own, wall in pairs])
        hidden_ms = beside[0 if self.busy else int(_HIDDEN_QUANTILE * len(beside))]
        claimed_ms = median(own_ms)
        if claimed_ms < _LEAST_SHARE * self.least_ms:
            outside = f"work that is next to nothing takes {self.least_ms:.4g} ms by the same clock"
            self._misreports(claimed_ms, outside, excusable=False)
        right_ms = (_HIDDEN_SHARE + _WARMING * self.warm) * claimed_ms + self.beside_ms + self._usual_ms
        if hidden_ms > right_ms:
            outside = f"a call took {claimed_ms + hidden_ms:.4g} ms by the judge's clock"
            self._misreports(claimed_ms, outside, excusable=hidden_ms < _MOST_CHARGED * right_ms)

    @property
    def _usual_ms(self) -> float:
        """What a call may take beside the kernel by the judge's clock: as much as an empty kernel's, and some."""
        if not self.control.beside_ms:
            return _CALL_OVERHEAD_MS[self.settings.kind]
        return _CONTROLS * self.control.beside_at(_HIDDEN_QUANTILE) + _BESIDE_MS[self.settings.kind]

    def check_in_a_row(
        self,
        own_ms: Sequence[float],
        batch: Callable[[int], Row],
        drift: Callable[[], float],
        empty_ms: Callable[[int], float],
    ) -> str:
        """Many calls in a row by the judge's clock; what was found, in words. Raises ``Rejected``.

        ``batch(count)`` makes them; ``drift()`` says how much slower the machine is now than while ``own_ms`` was
        taken, by work that is not the kernel's; ``empty_ms(count)`` what each of as many calls of an empty kernel takes
        beside its clock.
        """
        claimed_ms = median(own_ms)
        module = self.copies_ms is not None
        most = _MOST_IN_A_ROW["cuda" if module else self.settings.kind]
        count = max(2, min(most, round(_BATCH_MS / max(claimed_ms, 1e-3))))
        loop_ms = _MODULE_EACH_MS[self.settings.kind] if module else self._loop_ms(claimed_ms, count, empty_ms)
        each_ms = loop_ms + (1.0 + self.beside_ms) / count
        least = _Least(_LONGER * claimed_ms + each_ms)
        for number in range(_BATCHES_BUSY if self.busy else _BATCHES):
            if number >= _BATCHES and least.over >= _MOST_DISTURBED:
                break
            if least.take(batch(count), _LONGER * claimed_ms + each_ms, each_ms, claimed_ms, drift):
                return f"{count} calls in a row took {least.took_ms:.4g} ms each from outside"
        outside = f"{count} calls in a row took {least.took_ms:.4g} ms each by the judge's clock"
        return self._misreports(least.claimed_ms, outside, excusable=self._excusable(least))

    def check_rows(
        self,
        own_ms: Sequence[float],
        row: Callable[[int], Row],
        most: int,
        cold_ms: Callable[[], float],
        drift: Callable[[], float],
        empty_ms: Callable[[int], float],
    ) -> str:
        """Calls in a row, each on buffers of its own: unlike calls on the same ones they cannot be skipped.

        ``row(count)`` makes up to ``most`` of them; ``cold_ms()`` is what a call takes longer because its buffers
        were not loaded just before it; ``drift`` and ``empty_ms`` as above. What was found, in words; raises
        ``Rejected``.
        """
        claimed_ms = median(own_ms)
        if most < 2 or claimed_ms > _ROW_UP_TO_MS:
            return ""
        count = max(2, min(most, round(_ROW_MS / max(claimed_ms, 1e-3))))
        each_ms = self._loop_ms(claimed_ms, count, empty_ms) + self._usual_ms / count
        if self.copies_ms is not None:
            each_ms += _MODULE_ROW_MS + _COPY_SHARE * self.copies_ms + self.beside_ms / count
        colder_ms, measured = _COLDER_MS[self.settings.kind], 0
        right_ms, least = _ROW_LONGER * claimed_ms + each_ms + colder_ms, _Least(_ROW_LONGER * claimed_ms + colder_ms)
        for _ in range(_BATCHES_BUSY if self.busy else _BATCHES):
            made = row(count)
            too_long = max(made.each_ms - right_ms, made.own_ms / count - least.right_own_ms) > 0.0
            if too_long and measured < _COLD_MEASURED:
                more_ms = max(0.0, _COLDER_MS[self.settings.kind] + _COLDER * cold_ms() - colder_ms)
                measured, colder_ms, right_ms = measured + 1, colder_ms + more_ms, right_ms + more_ms
                least.right_own_ms += more_ms
            if least.take(made, right_ms, each_ms, claimed_ms, drift):
                return f"{count} calls on buffers of their own took {least.took_ms:.4g} ms each from outside"
        outside = f"{count} calls in a row on buffers of their own took {least.took_ms:.4g} ms each"
        outside += " by the judge's clock"
        return self._misreports(least.claimed_ms, outside, excusable=self._excusable(least))

    def _loop_ms(self, claimed_ms: float, count: int, empty_ms: Callable[[int], float]) -> float:
        """What the runner's loop takes for each of ``count`` calls."""
        known_ms = _EACH_MS[self.settings.kind]
        if self.settings.kind != "cpu" or claimed_ms > _TINY_MS:
            return known_ms
        return max(known_ms, _CONTROLS * empty_ms(count))

    def check_queued(self, own_ms: Sequence[float], queued: Callable[[int], float | None], most: int) -> str | None:
        """Calls queued on a GPU before their inputs are there, each on buffers of its own: nothing of them can be
        skipped or done before the clock runs, and launching them is no part of it.

        ``queued(count)`` makes up to ``most`` of them and gives milliseconds of all. What was found, in words; None
        where calls cannot be queued; raises ``Rejected``.
        """
        if self.settings.kind == "cpu":
            return None
        claimed_ms = median(own_ms)
        if most < 2 or claimed_ms > _ROW_UP_TO_MS:
            return ""
        count, fastest_ms = max(2, min(most, round(_QUEUED_MS / max(claimed_ms, 1e-3)))), float("inf")
        for _ in range(_BATCHES):
            if (all_ms := queued(count)) is None:
                if count == 2:
                    return None
                count = max(2, count // _FEWER)  # one call may be more launches than a stream takes
                continue
            right_ms = _QUEUED_LONGER * claimed_ms - _UNQUEUED_SHARE * self.least_ms + _QUEUED_BESIDE_MS / count
            right_ms += _COPY_SHARE * (self.copies_ms or 0.0)
            fastest_ms = min(fastest_ms, all_ms / count)
            if all_ms / count <= right_ms:
                return f"{count} calls queued at once took {max(0.0, all_ms / count):.4g} ms each from outside"
        outside = f"{count} calls queued at once took {fastest_ms:.4g} ms each by the judge's clock"
        return self._misreports(claimed_ms, outside, excusable=False)

    def _excusable(self, least: _Least) -> bool:
        """Whether a busy machine may be why calls in a row took so long."""
        overloaded = self.settings.kind == "cpu" and self.neighbours.share() > _OVERLOADED
        return least.over < _MOST_DISTURBED or (overloaded and not self.in_heat)

    @property
    def busy(self) -> bool:
        """Whether other programs keep the processor busy: nothing can be said of a kernel on it, or launched by it from
        Python."""
        on_processor = self.settings.kind == "cpu" or self.copies_ms is not None
        return on_processor and self.neighbours.share() > BUSY

    def _misreports(self, claimed_ms: float, outside: str, *, excusable: bool) -> NoReturn:
        self._accuse(MISREPORT, f"claims {claimed_ms:.4g} ms a call, but {outside}", excusable=excusable)

    def _accuse(self, pattern: str, found: str, *, excusable: bool) -> NoReturn:
        """Accuse the kernel, unless other programs kept the processor busy: then nothing can be said."""
        if excusable and self.busy:
            others = f"other programs used {self.neighbours.share():.0%} of the processor"
            raise Rejected("error", None, f"{found} while {others}: no verdict on a machine this busy")
        raise Rejected("cheating", pattern, found)


class _Least:
    """Of rows of calls the one that was disturbed least.

    ``over``: how many times as long as is right it took; ``took_ms``: a call of it; ``claimed_ms``: what the kernel
    says of a call, alone or in this row, whichever is further from that. ``right_own_ms``: what it may say in the row.
    """

    def __init__(self, right_own_ms: float) -> None:
        self.right_own_ms = right_own_ms
        self.over = self.took_ms = float("inf")
        self.claimed_ms = 0.0

    def take(self, row: Row, right_ms: float, beside_ms: float, claimed_ms: float, drift: Callable[[], float]) -> bool:
        """Whether ``row`` is no slower than a call is by right, nor its times less than it took but for ``beside_ms``
        a call."""
        in_row_ms = row.own_ms / row.count
        adds_up = row.each_ms / (_ADDS_UP * in_row_ms + beside_ms)
        over = max(row.each_ms / right_ms, in_row_ms / self.right_own_ms, adds_up)
        if over < self.over:
            self.over, self.took_ms = over, row.each_ms
            self.claimed_ms = in_row_ms if over == adds_up else claimed_ms
        return adds_up <= 1.0 and (over <= 1.0 or over <= min(max(drift(), 1.0), _MOST_DRIFT))


def _of_the_fastest(calls: list[tuple[float, float]]) -> list[float]:
    """What was found beside the clock of the faster half of ``calls``, in order of size; ``calls``: (claimed, beside).

    The median claim is what counts, and who lies about that has lied in every one of these.
    """
    middle = median(own for own, _ in calls)
    return sorted(beside for own, beside in calls if own <= middle)
