"""Medians, intervals and ranks."""

from __future__ import annotations

import random
from statistics import median

import pytest

from engine.evaluation.judge_policy import POLICY
from engine.evaluation.timing import noise_rejection, runoff_timing, speedup, statistics
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import counted_pairs


def test_ranks_are_those_of_the_binomial_tables() -> None:
    # Conover, Practical Nonparametric Statistics, table A3: at least 95% for the median
    assert statistics.interval_ranks(5) is None
    assert statistics.interval_ranks(6) == (0, 5)
    assert statistics.interval_ranks(10) == (1, 8)
    assert statistics.interval_ranks(20) == (5, 14)


def test_ranks_for_many_samples_join_those_of_the_tables() -> None:
    few, more = (
        statistics.interval_ranks(POLICY.statistics.normal_above),
        statistics.interval_ranks(POLICY.statistics.normal_above + 1),
    )
    assert few is not None and more is not None
    assert abs(few[0] - more[0]) <= 2 and abs(few[1] - more[1]) <= 2
    assert statistics.interval_ranks(100_000) is not None


def test_which_goes_first_does_not_move_the_ratio() -> None:
    draw = random.Random(2)
    noise = [draw.lognormvariate(0, 0.02) for _ in range(201)]
    ratios = [2.0 * one * (1.08 if index % 2 else 1 / 1.08) for index, one in enumerate(noise)]
    first = [index % 2 == 0 for index in range(len(ratios))]
    middle, low, high = statistics.median_interval(statistics.without_order(ratios, first))
    assert middle == pytest.approx(2.0, rel=0.005)
    assert high - low < 0.03
    assert statistics.without_order([1.5], [True]) == [1.5]


def test_a_kernel_that_lies_in_one_order_only_gains_no_more_than_a_cache_can() -> None:
    ratios = [2.0 if index % 2 == 0 or index % 3 == 0 else 200.0 for index in range(300)]
    first = [index % 2 == 0 for index in range(len(ratios))]
    middle, _, _ = statistics.median_interval(statistics.without_order(ratios, first))
    assert middle <= 2.0 * POLICY.statistics.order


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(2000):
        _, low, high = statistics.median_interval([draw.lognormvariate(0, 0.1) for _ in range(15)])
        covered += low <= 1.0 <= high
    assert 0.95 <= covered / 2000 <= 0.985  # order statistics are conservative


def test_settled_means_narrow_on_both_sides() -> None:
    assert statistics.is_settled([1.0, 1.001] * 10, 0.01, least=8)
    assert not statistics.is_settled([1.0, 1.1] * 10, 0.01, least=8)
    assert not statistics.is_settled([1.0] * 7, 0.01, least=8)


def test_a_summary_names_the_spread() -> None:
    found = statistics.summarize([float(i) for i in range(1, 12)])
    assert (found.median_ms, found.p10_ms, found.p90_ms, found.count) == (6.0, 2.0, 10.0, 11)
    with pytest.raises(ValueError, match="no times"):
        statistics.summarize([])


def test_standings_are_by_ratio_within_rounds_not_by_luck() -> None:
    noise = [1.0, 1.5, 0.9, 1.2, 1.1, 0.8, 1.4, 1.0, 1.3, 0.95, 1.05, 1.0]
    rows = runoff_timing.standings(
        {"fast": [2.0 * n for n in noise], "slow": [2.2 * n for n in noise], "same": [2.0 * n for n in noise]},
        margin=0.01,
    )
    by_name = {row.variant: row for row in rows}
    assert [row.variant for row in rows][-1] == "slow"
    assert by_name["slow"].ratio == pytest.approx(1.1)
    assert not by_name["slow"].tied
    assert by_name["fast"].tied and by_name["same"].tied
    assert by_name["fast"].median_ms == pytest.approx(2.0 * median(noise))


@pytest.mark.parametrize("seed", range(20))
def test_nobody_in_a_runoff_takes_less_than_the_first(seed: int) -> None:
    draw = random.Random(seed)
    times = {name: [draw.lognormvariate(0, 0.3) for _ in range(12)] for name in "abcd"}
    rows = runoff_timing.standings(times, 0.03)
    assert rows[0].ratio == 1.0
    assert [row.ratio for row in rows] == sorted(row.ratio for row in rows)
    assert all(row.ratio_low <= row.ratio <= row.ratio_high for row in rows)


def test_a_runoff_goes_on_while_the_order_is_open() -> None:
    noise = [1.0, 1.5, 0.9, 1.2, 1.1, 0.8, 1.4, 1.0, 1.3, 0.95, 1.05, 1.0]
    assert runoff_timing.is_settled({"a": noise, "b": [1.2 * n for n in noise]}, 0.01)
    assert not runoff_timing.is_settled({"a": noise, "b": list(reversed(noise))}, 0.01)


def test_a_look_after_every_round_still_finds_no_difference_between_a_kernel_and_its_copy() -> None:
    draw, different = random.Random(1), 0
    for _ in range(100):
        times: dict[str, list[float]] = {"kernel": [], "copy": []}
        while len(times["copy"]) < POLICY.runoff.least_rounds or (
            len(times["copy"]) < POLICY.runoff.most_rounds and not runoff_timing.is_settled(times, 0.03)
        ):
            for taken in times.values():
                taken.append(draw.lognormvariate(0, 0.15))
        different += not runoff_timing.standings(times, 0.03)[1].tied
    assert different <= 1


def test_the_interval_covers_what_each_process_says() -> None:
    def process(ratio: float) -> statistics.Pairs:
        return statistics.Pairs(
            kernel_ms=[1.0] * 100,
            reference_ms=[ratio + 0.001 * (i % 5) for i in range(100)],
            wall_ms=[1.1] * 100,
            reported_ms=[1.0] * 100,
            reference_first=[i % 2 == 0 for i in range(100)],
        )

    def over(*ratios: float) -> tuple[float, float, float]:
        processes = [process(ratio) for ratio in ratios]
        return statistics.over_processes(processes, processes)

    assert over(2.0, 2.0, 2.0) == statistics.median_interval(process(2.0).ratios * 3)
    middle, low, high = over(2.0, 1.8, 2.2)
    assert 2.0 <= middle < 2.01 and 1.8 <= low < 1.81 and 2.2 <= high < 2.21


def drawn_pairs(count: int, disturbed: float, *, alone: float = 0.0, seed: int = 1) -> statistics.Pairs:
    """Simulate a kernel at 1.2 times the reference's speed.

    In a share of the pairs, a disturbance slows the reference by half and the kernel by a fifth. In ``alone`` of its
    calls, the kernel itself takes twice as long.
    """
    draw, pairs = random.Random(seed), statistics.Pairs.none()
    for index in range(count):
        slowed = draw.random() < disturbed
        by_itself = 2.0 if draw.random() < alone else 1.0
        pairs.reference_ms.append(1.2 * (1.5 if slowed else 1.0) * draw.uniform(1.0, 1.05))
        pairs.kernel_ms.append((1.2 if slowed else 1.0) * by_itself * draw.uniform(1.0, 1.05))
        pairs.reference_first.append(index % 2 == 0)
        pairs.wall_ms.append(pairs.kernel_ms[-1] + 0.1)
        pairs.reported_ms.append(pairs.kernel_ms[-1])
    return pairs


def timed(*processes: statistics.Pairs) -> Verdict:
    return speedup.timed(Verdict(status="correct"), "cpu", *processes)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_what_something_else_slowed_does_not_count(share: float) -> None:
    verdict = timed(drawn_pairs(600, share))
    assert verdict.pairs + verdict.disturbed_pairs == 600
    assert 0.9 * (1 - share) < verdict.pairs / 600 < 1.1 * (1 - share) + 0.03
    assert verdict.speedup == pytest.approx(1.2, rel=0.01)
    assert counted_pairs(verdict) == (f"{verdict.pairs} of 600" if share else "600")


def test_a_kernel_whose_own_times_differ_gains_nothing_by_it() -> None:
    verdict = timed(drawn_pairs(600, 0.0, alone=0.7))
    assert verdict.pairs == 600 and verdict.speedup == pytest.approx(0.6, rel=0.02)


def test_a_kernel_that_lies_in_one_order_only_gains_no_more_by_a_busy_machine() -> None:
    pairs = drawn_pairs(600, 0.5)
    pairs.kernel_ms = [
        ms / 100 if first else ms for ms, first in zip(pairs.kernel_ms, pairs.reference_first, strict=True)
    ]
    found = timed(pairs).speedup
    assert found is not None and found <= 1.2 * 1.06 * POLICY.statistics.order


@pytest.mark.parametrize(("share", "lies"), [(0.5, 0.37), (0.6, 0.36), (0.7, 0.30)])
def test_a_kernel_that_lies_in_some_calls_does_not_choose_those_that_count(share: float, lies: float) -> None:
    """The judge's clock decides which calls are slow."""
    draw, pairs = random.Random(3), drawn_pairs(700, share)
    pairs.kernel_ms = [ms / 20 if draw.random() < lies else ms for ms in pairs.kernel_ms]
    assert timed(pairs).speedup == pytest.approx(1.2, rel=0.06)


def test_a_sitting_of_which_everything_was_disturbed_does_not_count_beside_quiet_ones() -> None:
    quiet = [drawn_pairs(200, 0.0, seed=seed) for seed in (1, 2)]
    verdict = timed(*quiet, drawn_pairs(200, 1.0))
    assert (verdict.pairs, verdict.disturbed_pairs) == (400, 200)
    assert verdict.speedup == pytest.approx(1.2, rel=0.01)
    assert verdict.speedup_high is not None and verdict.speedup_high > 1.4, "but the interval says what it found"


def test_a_slow_process_of_a_kernel_counts_on_a_busy_machine() -> None:
    slow = drawn_pairs(200, 0.4, seed=3)
    slow.kernel_ms = [1.06 * ms for ms in slow.kernel_ms]
    slow.wall_ms = [1.06 * ms for ms in slow.wall_ms]
    each = noise_rejection.undisturbed(drawn_pairs(200, 0.4, seed=2), slow)
    assert all(len(pairs.kernel_ms) > 90 for pairs in each)


def test_the_least_disturbed_pairs_count_where_too_few_are_left() -> None:
    assert len(noise_rejection.undisturbed(drawn_pairs(12, 0.9))[0].kernel_ms) == 12
    assert 16 <= len(noise_rejection.undisturbed(drawn_pairs(400, 0.96))[0].kernel_ms) <= 32
    for count in (0, 1, 2, 7, 8, 9, 16, 17):
        assert len(noise_rejection.undisturbed(drawn_pairs(count, 0.5))[0].kernel_ms) >= min(count, 8)


def test_on_a_gpu_every_pair_counts() -> None:
    verdict = speedup.timed(Verdict(status="correct"), "cuda", drawn_pairs(100, 0.5))
    assert (verdict.pairs, verdict.disturbed_pairs, counted_pairs(verdict)) == (100, 0, "100")


def test_the_references_times_of_each_order_are_limited() -> None:
    pairs = statistics.Pairs([1.0] * 4, [6.0, 2.0, 10.0, 1.0], [1.0] * 4, [1.0] * 4, [True, False, True, False])
    assert pairs.reference_medians_ms() == {True: 8.0, False: 1.5}
    pairs.limit_reference(4.0)
    assert pairs.reference_ms == [3.0, 2.0, 5.0, 1.0]
    assert pairs.reference_medians_ms() == {True: 4.0, False: 1.5}
