"""A kernel must write every element of its outputs, even if the reference is NaN there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.evaluation.correctness.comparison import Tolerances
from engine.evaluation.correctness.output_validation import Answers
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.rejection import Rejected
from engine.problem.inspection import inspect_file

LOGARITHM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)

def get_inputs():
    return [torch.randn(40, 100, dtype=torch.DTYPE)]

def get_init_inputs():
    return []
"""


@pytest.fixture(params=["float32", "float16"])
def logarithm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JudgedProblem]:
    """Return NaN for about half of the elements."""
    file = tmp_path / "logarithm.py"
    file.write_text(LOGARITHM.replace("DTYPE", request.param))
    judged = JudgedProblem(inspect_file(file, "logarithm"), JudgeDevice("cpu", 1), 2)
    yield judged
    judged.close()


@pytest.mark.parametrize("poison", [0, 1])
@pytest.mark.parametrize("skips_nan", [True, False])
def test_elements_that_are_nan_must_be_written_too(logarithm: JudgedProblem, poison: int, skips_nan: bool) -> None:
    slot, trial = logarithm.arena.slots[0], logarithm.trial(0)
    trial.load(slot)
    slot.poison(poison)
    right = trial.expected[0]
    slot.outputs[0].copy_(torch.where(right.isnan(), slot.outputs[0], right) if skips_nan else right)
    answers = Answers(Tolerances(1e-2, 1e-2))

    def check() -> None:
        answers.check(logarithm, slot, trial.expected, poison, "trial 0", lambda: None)

    if skips_nan:
        with pytest.raises(Rejected, match="unwritten") as refused:
            check()
        assert refused.value.pattern == "leaves output unwritten"
    else:
        check()
