"""Where eager itself depends on rounding, a kernel may differ from it; elsewhere, it may not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.correctness.comparison import KERNELBENCH
from engine.evaluation.correctness.fp64_reference import ExactOutputs, compare_in_double
from engine.evaluation.correctness.output_validation import Answers
from engine.evaluation.correctness.ties import choices_of
from engine.evaluation.correctness.trials import JudgedProblem, Trial
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.judge_policy import POLICY
from engine.evaluation.rejection import Rejected
from engine.problem.inspection import inspect_file

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# The first query has two nearly equal best keys. For inputs 100 times as large, its scores are near 1e5 and differ by
# about one, so rounding errors in the scores change its output, and no other.
ATTENTION = """
import torch

class Model(torch.nn.Module):
    def forward(self, q, k, v):
        BEFORE
        return torch.softmax(q @ k.mT / 8, -1) @ v

def get_inputs():
    q, k, v = (torch.randn(2, 40, 64) for _ in range(3))
    k[:, 1] = k[:, 0] + 1e-5 * torch.randn(2, 64)
    q[:, 0] = k[:, 0]
    return [q, k, v]

def get_init_inputs():
    return []
"""
TRIALS = 60
"""Enough for eager to be accurate by chance at an element where an honest kernel is not."""


@pytest.fixture(params=["pass", "v.mul_(-1)"], ids=["", "writes an input"])
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JudgedProblem]:
    file = tmp_path / "attention.py"
    file.write_text(ATTENTION.replace("BEFORE", request.param))
    judged = JudgedProblem(inspect_file(file, "attention"), JudgeDevice("cpu", 1), 8)
    assert judged.mutates is (request.param != "pass")
    yield judged
    judged.close()


def one_by_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention in fp32 that sums each score term by term."""
    scores = torch.zeros(q.shape[0], q.shape[1], k.shape[1])
    for place in range(q.shape[2]):
        scores += q[:, :, place, None] * k[:, None, :, place]
    return torch.softmax(scores / 8, -1) @ v


def in_fp16(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return one_by_one(q.half().float(), k.half().float(), v)


def without_a_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return one_by_one(q, k[:, 1:], v[:, 1:])


def without_a_query(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with the mean of two values for the first query, as if any mixture would do where scores are close."""
    out = one_by_one(q, k, v)
    out[:, 0] = 0.7 * v[:, 0] + 0.3 * v[:, 2]
    return out


def verdict_on(kernel: Attention, judged: JudgedProblem, trial: Trial) -> str:
    """Return the pattern of the kernel's outputs on the trial, "" if they are correct."""
    slot = judged.arena.slots[0]
    trial.load(slot)
    if judged.mutates:
        slot.inputs[2].mul_(-1)
    slot.outputs[0].copy_(kernel(*slot.inputs))
    try:
        exact = lambda: judged.trial_in_double(trial, slot)  # noqa: E731
        Answers(KERNELBENCH).check(judged, slot, trial.expected, 0, "trial", exact)
    except Rejected as rejected:
        return rejected.pattern or rejected.reason
    return ""


def test_an_honest_kernel_is_right_where_the_two_largest_scores_are_close(judged: JudgedProblem) -> None:
    for index in range(TRIALS):
        trial = judged.source.make(index, "large", perturbed=False)
        assert verdict_on(one_by_one, judged, trial) == ""


@pytest.mark.parametrize("kernel", [in_fp16, without_a_key, without_a_query])
def test_other_kernels_are_wrong_there(kernel: Attention, judged: JudgedProblem) -> None:
    # In about one trial of 60, eager has an error as large as the error of fp16. The judge therefore draws many trials.
    trials = [judged.source.make(index, "large", perturbed=False) for index in range(4)]
    assert any(verdict_on(kernel, judged, trial) for trial in trials)


def test_drawn_inputs_are_compared_as_closely_as_before(judged: JudgedProblem) -> None:
    trial = judged.source.make(0, "drawn", perturbed=False)
    assert verdict_on(one_by_one, judged, trial) == ""
    assert verdict_on(lambda q, k, v: one_by_one(q, k, v) * 1.001, judged, trial)


def test_only_the_ill_conditioned_element_may_be_off() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager, runs = exact.float(), []

    def nearby() -> list[torch.Tensor]:
        runs.append(1)
        moved = eager.clone()
        moved[7] += 1e-2 * (-1) ** len(runs)
        return [moved]

    def passes(place: int, error: float) -> bool:
        runs.clear()
        out = eager.clone()
        out[place] += error
        right = ExactOutputs([exact], [None], False, POLICY.correctness, nearby)
        return compare_in_double([out], [eager], lambda: right, KERNELBENCH).problem is None

    assert passes(7, 9e-3) and len(runs) == 1
    assert not passes(7, 2e-2) and len(runs) == POLICY.correctness.nearby
    assert not passes(8, 9e-3) and len(runs) == 2  # far beyond what nearby inputs change


def test_a_model_that_chooses_needs_more_runs_to_show_a_near_tie() -> None:
    exact = torch.randn(1000, dtype=torch.float64)
    eager, runs = exact.float(), []

    def nearby() -> list[torch.Tensor]:
        runs.append(1)
        moved = eager.clone()
        if len(runs) == 10:
            moved[7] = 3.0  # another expert
        return [moved]

    def passes(place: int, chooses: bool) -> bool:
        runs.clear()
        out = eager.clone()
        out[place] = 3.0 * (1 + 1e-6)
        right = ExactOutputs([exact], [None], chooses, POLICY.correctness, nearby)
        return compare_in_double([out], [eager], lambda: right, KERNELBENCH).problem is None

    assert passes(7, chooses=True) and len(runs) == 10
    assert not passes(8, chooses=True) and len(runs) == POLICY.correctness.nearby_choosing
    assert not passes(7, chooses=False) and len(runs) == 2


@pytest.mark.parametrize(
    ("model", "chooses"),
    [
        (lambda x: [torch.zeros_like(x).scatter_(1, x.topk(2)[1], 1.0)], True),
        (lambda x: [x[x.argmax(1)]], True),
        (lambda x: [x.gather(1, x.argsort(1)[:, :3])], True),
        (lambda x: list(x.topk(2)), False),
        (lambda x: [x.max(1)[0].exp(), x.sort(1)[0] + 1, x.median()], False),
        (lambda x: [x.relu().sum(1)], False),
    ],
)
def test_a_model_chooses_if_it_computes_with_indices(
    model: Callable[[torch.Tensor], list[torch.Tensor]], chooses: bool
) -> None:
    x = torch.randn(8, 8)
    assert choices_of(lambda: model(x), lambda: model(x.double()))[2] is chooses
