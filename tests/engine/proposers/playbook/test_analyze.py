"""The traced reference becomes a pointwise or row program, or is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.proposers.playbook.analysis.analyze import analyze
from engine.proposers.playbook.base import Unsupported
from engine.proposers.playbook.ir.program import Access, PointwiseProgram, RowProgram
from tests.engine.proposers.playbook.cpp_harness import make_problem


def test_a_chain_of_primitives_is_one_pointwise_program(tmp_path: Path) -> None:
    program = analyze(make_problem(tmp_path, "return x * torch.sigmoid(x) * 2 + y", {"x": (3, 4), "y": (4,)}).spec)
    assert isinstance(program, PointwiseProgram)
    assert program.numel == 12
    loads = {value.tensor: value.access for value in program.values if value.op == "load"}
    assert loads == {"x": Access(1, 12), "y": Access(1, 4)}


def test_softmax_has_two_passes_that_can_be_fused(tmp_path: Path) -> None:
    program = analyze(make_problem(tmp_path, "return torch.softmax(x, dim=-1)", {"x": (2, 3, 5)}).spec)
    assert isinstance(program, RowProgram)
    assert (program.rows, program.cols, program.passes) == (6, 5, ((0,), (1,)))
    assert program.fusable_pair is not None
    assert program.fusable_pair.kind == "online_softmax"


def test_layernorm_over_several_dimensions_has_long_rows(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, "return self.n(x)", {"x": (2, 3, 4, 5)}, "self.n = nn.LayerNorm((3, 4, 5))")
    program = analyze(problem.spec)
    assert isinstance(program, RowProgram)
    assert (program.rows, program.cols) == (2, 60)
    assert program.fusable_pair is not None
    assert program.fusable_pair.kind == "moments"
    assert program.fusable_pair.correction >= 0


def test_a_mean_written_out_reads_each_value_once(tmp_path: Path) -> None:
    text = "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"
    program = analyze(make_problem(tmp_path, text, {"x": (4, 8)}).spec)
    assert isinstance(program, RowProgram)
    assert len(program.reductions) == 1
    assert sum(value.op == "load" for value in program.values) == 1


def test_a_sum_gives_one_number_a_row(tmp_path: Path) -> None:
    program = analyze(make_problem(tmp_path, "return x.sum(dim=1)", {"x": (4, 8)}).spec)
    assert isinstance(program, RowProgram)
    assert [store.per_row for store in program.stores] == [True]


@pytest.mark.parametrize(
    ("forward", "shapes", "reason"),
    [
        ("return x @ x", {"x": (4, 4)}, "no pattern covers the operator mm"),
        ("return x.sum(dim=0)", {"x": (4, 8)}, "over dimensions that are not the last ones"),
        ("return torch.softmax(x, 1).mean(0)", {"x": (4, 8)}, "over dimensions that are not the last ones"),
        ("return x.sum(-1).sum(-1)", {"x": (4, 8, 2)}, "rows of different lengths"),
        ("return torch.tril(x).sum(-1)", {"x": (4, 8)}, "positions of elements"),
        ("return x.double() * 2", {"x": (4, 8)}, "float64"),
        ("return x + y", {"x": (3, 4, 5), "y": (3, 1, 5)}, "over dimensions that are not adjacent"),
        ("return x - x.mean(-1)", {"x": (4, 4)}, "the model combines a reduced value with elements of other rows"),
    ],
)
def test_what_no_pattern_covers_is_refused_with_the_reason(
    tmp_path: Path, forward: str, shapes: dict[str, tuple[int, ...]], reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason):
        analyze(make_problem(tmp_path, forward, shapes).spec)
