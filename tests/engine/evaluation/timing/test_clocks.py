"""The judge chooses between the call time that the runner reports and its own measurement."""

from __future__ import annotations

import pytest

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.evaluation.timing.call_overhead import CallOverhead
from engine.evaluation.timing.clocks import MISREPORT, CallLimits, check_report

LIMITS = CallLimits("cpu", CallOverhead([0.1, 0.1, 0.1]))


def test_a_true_report_counts_as_it_is() -> None:
    for reported in (0.01, 1.0, 100.0):
        assert LIMITS.counted_ms(reported, reported + 0.12) == reported


def test_a_clock_that_runs_short_gains_no_more_than_a_call_costs() -> None:
    """This holds even if only some calls are shortened, since each call counts separately."""
    took = 5.0
    for reported in (1e-6, 0.1, 2.5, 4.9):
        assert took - 0.15 <= LIMITS.counted_ms(reported, took + 0.1) <= took


def test_a_busy_machine_whose_calls_cost_more_accuses_nobody() -> None:
    busy = CallLimits("cpu", CallOverhead([3.0, 4.0, 5.0]))
    assert busy.counted_ms(1.0, 5.0) == 1.0


def test_no_call_on_a_gpu_is_shorter_than_next_to_nothing() -> None:
    assert CallLimits("cuda", CallOverhead([1.0]), least_ms=0.004).counted_ms(1e-6, 0.5) == pytest.approx(0.0034)


def test_a_kernel_that_takes_far_longer_than_it_reports_is_cheating() -> None:
    with pytest.raises(Rejected) as rejected:
        check_report([0.1] * 9, [2.0] * 9, contended=False)
    assert (rejected.value.status, rejected.value.pattern) == ("cheating", MISREPORT)
    assert "0.1 ms" in rejected.value.reason and "2 ms" in rejected.value.reason


def test_cold_buffers_excuse_more_where_calls_on_warm_ones_agree() -> None:
    assert (
        LIMITS.allowed_batch_call_ms(0.2, 0.1, warm_agrees=False)
        < LIMITS.allowed_batch_call_ms(0.2, 0.1, warm_agrees=True)
        < 1.1
    )


def test_a_lesser_difference_or_a_busy_machine_is_a_remark() -> None:
    assert check_report([1.0] * 9, [1.0] * 9, contended=False) == ""
    assert check_report([1.0] * 9, [1.2] * 9, contended=False).startswith(MISREPORT)
    assert "busy machine" in check_report([0.1] * 9, [2.0] * 9, contended=True)


def test_binding_weights_is_allowed_once_per_call_that_binds() -> None:
    def limits(*, untimed: int = 0, binds_ms: tuple[float, ...] = (0.3, 0.5, 0.4)) -> CallLimits:
        return CallLimits("cpu", CallOverhead([0.1]), copy_ms=0.0, binds_ms=binds_ms, untimed=untimed)

    none, bind_ms = limits(binds_ms=()), limits().bind_ms
    assert bind_ms == pytest.approx(2 * 0.4)
    assert limits().python_ms - none.python_ms == pytest.approx(bind_ms)
    each_ms = limits().beside_batch_ms(100, 0.0) - none.beside_batch_ms(100, 0.0)
    assert each_ms == pytest.approx(1.01 * bind_ms)
    same_ms = limits().beside_batch_ms(100, 0.0, binds=False) - none.beside_batch_ms(100, 0.0, binds=False)
    assert same_ms == pytest.approx(0.01 * bind_ms)


def test_untimed_calls_are_allowed_for_at_most_in_proportion_to_the_reported_time() -> None:
    def counted_ms(untimed: int, reported_ms: float) -> float:
        limits = CallLimits("cuda", CallOverhead([0.1]), copy_ms=0.0, untimed=untimed)
        return limits.counted_ms(reported_ms, 30.0 + limits.call_ms)

    assert counted_ms(0, 10.0) == pytest.approx(30.0)
    assert counted_ms(2, 10.0) == 10.0  # Three calls of 10 ms each.
    each_untimed_ms = POLICY.clock.untimed * 5.0 + POLICY.clock.python_call_ms
    assert counted_ms(2, 5.0) == pytest.approx(30.0 - 2 * each_untimed_ms)


def test_a_compiled_kernel_binds_nothing() -> None:
    assert CallLimits("cpu", CallOverhead([0.1]), binds_ms=(5.0,)).call_ms == LIMITS.call_ms


def test_checking_and_copying_many_outputs_is_allowed_after_each_call() -> None:
    """Figures of an H200: 63 outputs, two untimed calls before each timed call, 6.49 ms by the judge's clock."""
    overhead = CallOverhead([0.91, 1.0])
    limits = CallLimits("cuda", overhead, copy_ms=0.123, copied=63, untimed=2)

    assert limits.counted_ms(0.547, 6.49) == 0.547
    assert CallLimits("cuda", overhead, copy_ms=0.123, copied=1, untimed=2).counted_ms(0.547, 6.49) > 0.9
