"""Decide how long a call took.

The judge verifies the times that a kernel's process reports. The judge subtracts the overhead of an empty kernel's call
from its own measurement, and uses the larger of the two times. Therefore a slow clock gives a kernel no advantage,
and a very slow clock counts as cheating. Threat: ``clock``.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.timing.call_overhead import CallOverhead

MISREPORT = "misreports its time"
COUNTS_INSTEAD = "the verdict uses the judge's time"
_CLOCK = POLICY.clock


class CallLimits(Struct, frozen=True):
    """The allowed difference between the judge's time and the reported time, in milliseconds.

    ``kind``: "cpu" or "cuda". ``overhead``: the overhead of the empty-kernel calls that the judge makes between the
    kernel's calls. During timing, the list of these calls grows, and the allowances change accordingly. ``copy_ms``:
    the judge's time for copying a Python kernel's outputs; 0 without a copy, None for compiled kernels. ``copied``: the
    number of outputs that a Python kernel's process checks and copies. ``binds_ms``: the judge's times for binding a
    model's weights to a slot; this list grows, too. ``untimed``: the number of untimed calls before each single call.
    ``least_ms``: the minimum time of any GPU call; 0 on a CPU.
    """

    kind: str
    overhead: CallOverhead
    copy_ms: float | None = None
    copied: int = 0
    binds_ms: Sequence[float] = ()
    untimed: int = 0
    least_ms: float = 0.0

    @property
    def python(self) -> bool:
        return self.copy_ms is not None

    @property
    def call_ms(self) -> float:
        """Allowance for a single call, in milliseconds."""
        known = bool(self.overhead.beside_ms)
        usual = self.overhead.beside_at(0.5) * _CLOCK.overhead + _CLOCK.beside_ms[self.kind]
        return (usual if known else _CLOCK.unknown_ms[self.kind]) + self.python_ms

    @property
    def bind_ms(self) -> float:
        """Allowance for binding the weights of a slot to a Python kernel, in milliseconds."""
        return _CLOCK.bind * median(self.binds_ms) if self.binds_ms else 0.0

    @property
    def python_ms(self) -> float:
        """Allowance for the Python code around a Python kernel's ``forward``, in milliseconds."""
        if self.copy_ms is None:
            return 0.0
        # A machine that delays calls also delays Python.
        delays_ms = self.overhead.beside_at(0.2)
        return _CLOCK.python_call_ms + delays_ms + self._around_ms

    @property
    def _around_ms(self) -> float:
        """Allowance in milliseconds for binding weights before a Python kernel's call and for its outputs afterward."""
        return self.bind_ms + self._outputs_ms

    @property
    def _outputs_ms(self) -> float:
        """Allowance for checking and copying a Python kernel's outputs after a call, in milliseconds."""
        return _CLOCK.output_copy * (self.copy_ms or 0.0) + _CLOCK.output_ms * self.copied

    def counted_ms(self, reported_ms: float, seen_ms: float) -> float:
        """Return a single call's time for the verdict in milliseconds, given the reported time and the judge's time."""
        each_untimed_ms = _CLOCK.untimed * reported_ms + _CLOCK.python_call_ms + self._around_ms
        beside = self.call_ms + self.untimed * each_untimed_ms
        return max(reported_ms, seen_ms - beside, _CLOCK.least * self.least_ms)

    def beside_batch_ms(self, count: int, loop_ms: float, *, binds: bool = True) -> float:
        """Return the overhead of each of ``count`` calls in a batch, in milliseconds.

        ``loop_ms``: the overhead of the runner's loop. ``binds``: whether each call uses a different slot from the
        previous call, so that a Python kernel's process binds the weights again.
        """
        beside = loop_ms + self.call_ms / count
        if self.copy_ms is not None:
            beside += _CLOCK.python_batch_ms[self.kind] + binds * self.bind_ms + self._outputs_ms
        return beside

    def allowed_batch_call_ms(self, claimed_ms: float, cold_ms: float, *, warm_agrees: bool) -> float:
        """Return the longest time per call in a batch that is consistent with ``claimed_ms``, in milliseconds, allowing
        for colder buffers.

        ``cold_ms``: the extra time to touch cold buffers once. ``warm_agrees``: whether calls on the same buffers took
        ``claimed_ms``. If so, only a kernel that skips repeated calls can hide time.
        """
        colder = _CLOCK.batch_coldest if warm_agrees else _CLOCK.batch_colder
        return colder * claimed_ms + _CLOCK.batch_colder_ms[self.kind] + _CLOCK.batch_cold * cold_ms

    def allowed_queued_ms(self, claimed_ms: float, count: int) -> float:
        """Return the longest allowed time of each of ``count`` queued GPU calls in milliseconds, excluding the time for
        queuing.
        """
        beside = _CLOCK.queued_beside_ms / count + _CLOCK.output_copy * (self.copy_ms or 0.0)
        return _CLOCK.queued_factor * claimed_ms - _CLOCK.unqueued * self.least_ms + beside


def check_report(reported_ms: Sequence[float], counted_ms: Sequence[float], *, contended: bool) -> str:
    """Return a remark if the judge's times clearly exceed the reported times, otherwise "".

    ``contended``: whether other programs use the processor, so that the judge's times prove nothing. Raises
    ``Rejected`` for a kernel that takes far longer than it reports.
    """
    reported, counted = median(reported_ms), median(counted_ms)
    said = f"the kernel reports {reported:.4g} ms per call but takes {counted:.4g} ms by the judge's clock"
    far = counted > _CLOCK.misreported * reported and counted > reported + _CLOCK.misreported_ms
    if far and not contended:
        raise Rejected("cheating", MISREPORT, said)
    if counted <= _CLOCK.remarked * reported:
        return ""
    return f"{'busy machine' if contended else MISREPORT}: {said}; {COUNTS_INSTEAD}"
