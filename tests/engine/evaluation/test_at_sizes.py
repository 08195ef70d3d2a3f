"""Two kernels at other sizes: one reads the sizes from its header, and one has hard-coded sizes."""

from __future__ import annotations

import pytest

from engine.evaluation.at_sizes import judge_at_sizes
from engine.problem.resize import other_sizes
from engine.session.records.other_sizes import NOT_FOR_THIS_SIZE, AtSizes, sizes_in_words
from tests.engine.evaluation.conftest import COLUMNS, ROWS, Bench
from tests.engine.evaluation.kernels import softmax


def at_other_sizes(bench: Bench, source: str) -> dict[str, AtSizes]:
    async def judged() -> list[AtSizes]:
        places = await other_sizes(bench.problem)
        return [short async for short, _ in judge_at_sizes(bench.evaluator, places, bench.language, source)]

    results = bench.run(judged())
    assert isinstance(results, list)
    return {one.label: one for one in results}


def test_a_kernel_that_reads_its_header_is_right_at_any_size(bench: Bench) -> None:
    found = at_other_sizes(bench, softmax(bench.language))
    assert list(found) == ["smaller", "odd", "larger"]
    assert {one.status for one in found.values()} == {"correct"}
    assert all(one.speedup and one.kernel_ms and one.eager_ms for one in found.values())
    assert sizes_in_words(list(found.values())).startswith("correct at all 3 other sizes, ")


def test_a_kernel_with_its_sizes_written_in_is_right_only_there(bench: Bench) -> None:
    written_in = softmax(bench.language).replace("x_dim0", str(ROWS)).replace("x_dim1", str(COLUMNS))
    assert bench.judge(written_in).correct
    found = at_other_sizes(bench, written_in)
    assert "correct" not in {one.status for one in found.values()}
    assert sizes_in_words(list(found.values())).startswith("correct only at the searched sizes; ")


def test_a_kernel_may_say_which_sizes_it_is_for(bench: Bench) -> None:
    needs = f"rows of at most {COLUMNS} elements"
    limited = softmax(bench.language) + f'\nstatic_assert(x_dim1 <= {COLUMNS}, "{NOT_FOR_THIS_SIZE}: needs {needs}");\n'
    assert bench.judge(limited).correct
    found = at_other_sizes(bench, limited)
    assert [one.status for one in found.values()] == ["correct", "correct", "build_error"]
    assert found["larger"].unfit and found["larger"].reason == f"{NOT_FOR_THIS_SIZE}: needs {needs}"
    words = sizes_in_words(list(found.values()))
    assert words.startswith("correct at 2 of 3 other sizes, ") and f"; {NOT_FOR_THIS_SIZE} at x " in words


def result(status: str, speedup: float | None = None, shapes: str = "x (5, 7)") -> AtSizes:
    return AtSizes("odd", {"ROWS": 5}, shapes, status, speedup=speedup)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], ""),
        ([result("correct", 1.5), result("correct", 2.0)], "correct at all 2 other sizes, 1.50x to 2.00x over eager"),
        (
            [result("correct", 1.5), result("correct", 0.8, "x (9,)")],
            "correct at all 2 other sizes, 0.80x to 1.50x over eager; slower than eager at some sizes: 0.80x at x (9,)",
        ),
        (
            [result("correct", 1.5), result("wrong"), result("error", shapes="x (9,)")],
            "correct at 1 of 2 other sizes, 1.50x over eager; wrong at x (5, 7); not judged at x (9,)",
        ),
        ([result("build_error")], "correct only at the searched sizes; build error at x (5, 7)"),
        (
            [AtSizes("odd", {}, "x (5, 7)", "build_error", f"{NOT_FOR_THIS_SIZE}: needs short rows")],
            "correct only at the searched sizes; not for this size at x (5, 7)",
        ),
        ([result("error")], "not judged at x (5, 7)"),
    ],
)
def test_in_words(results: list[AtSizes], words: str) -> None:
    assert sizes_in_words(results) == words
