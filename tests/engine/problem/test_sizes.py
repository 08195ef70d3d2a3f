"""Sizes named in a problem file, the same file with other sizes, and the resulting problems."""

from __future__ import annotations

import asyncio

import pytest

from engine.problem.catalog import inspect_files, resolve
from engine.problem.resize import NoOtherSizes, other_sizes, resize
from engine.problem.sizes import SizeError, larger, odd, parse_sizes, sizes_of, smaller, with_sizes
from engine.problem.spec import ProblemSpec

FILE = """\
import torch  # größer
ROWS, COLUMNS = 1000, 2_000
SHAPE = (64, 1, 128 * 2)
EPS, TRICKY = 1e-5, True
TWICE = ROWS * 2
CHANGED = 7
CHANGED = 8


class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = torch.nn.Linear(features, 33)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(ROWS, *SHAPE[1:2], 4096).sum(dim=-2)]


def get_init_inputs():
    return [4096]
"""


HEADS = """\
import torch
ROWS = 300
WIDTH = 64
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x.reshape(x.shape[0], 8, x.shape[1] // 8), dim=-1)
def get_inputs():
    return [torch.rand(ROWS, WIDTH)]
"""
FIXED = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(int('40'))]
"""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ProblemSpec]:
    """Inspect three files in parallel."""
    directory = tmp_path_factory.mktemp("sizes")
    for name, text in (("linear", FILE), ("heads", HEADS), ("fixed", FIXED)):
        (directory / f"{name}.py").write_text(text)
    found = asyncio.run(inspect_files(resolve([str(directory)], directory)))
    specs = {one.name: one for one in found if isinstance(one, ProblemSpec)}
    assert specs.keys() == {"linear", "heads", "fixed"}, found
    return specs


def shapes(spec: ProblemSpec) -> dict[str, tuple[int, ...]]:
    return {one.name: one.shape for one in spec.tensors}


def test_constants_elements_and_literals_are_sizes() -> None:
    assert sizes_of(FILE) == {"ROWS": 1000, "COLUMNS": 2000, "SHAPE[0]": 64, "SHAPE[2]": 256, "4096": 4096}


def test_other_sizes_change_nothing_but_the_numbers() -> None:
    changed = with_sizes(FILE, {"COLUMNS": 512, "SHAPE[2]": 3, "4096": 100})
    expected = FILE.replace("2_000", "512").replace("128 * 2", "3").replace("4096", "100")
    assert changed == expected
    assert with_sizes(FILE, {}) == FILE


def test_a_size_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(SizeError, match=r"no size ROW; did you mean ROWS\?.* ROWS=1000, "):
        with_sizes(FILE, {"ROW": 5})


def test_sizes_are_written_as_name_and_number() -> None:
    assert parse_sizes("ROWS=1_000, 4096=8") == {"ROWS": 1000, "4096": 8}
    for wrong in ("ROWS", "ROWS=", "ROWS=x", "=3", "ROWS=0", "ROWS=-4", ""):
        with pytest.raises(SizeError, match="write NAME=NUMBER"):
            parse_sizes(wrong)


@pytest.mark.parametrize("value", [2, 3, 16, 30, 100, 1000, 1500, 2048, 4096, 65536, 393216])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_scaled_sizes(value: int, count: int) -> None:
    assert 1 <= smaller(value, count) < value < larger(value, count)
    assert odd(value, count) % 2 == 1
    assert odd(value, count) < value or value < 4
    if value >= 1000:
        assert smaller(value, count) ** count == pytest.approx(value**count / 4, rel=0.2)
        assert larger(value, count) ** count == pytest.approx(value**count * 2, rel=0.2)
        assert larger(value, count) % min(value & -value, 32) == 0


def test_a_problem_at_named_sizes_has_another_header_and_id(specs: dict[str, ProblemSpec]) -> None:
    spec = specs["linear"]
    (other,) = asyncio.run(resize(spec, [{"ROWS": 5, "4096": 60}]))
    assert shapes(other.problem) == {
        "x": (5, 60),
        "linear_weight": (33, 60),
        "linear_bias": (33,),
        "out": (5, 33),
    }
    assert other.problem.id != spec.id
    assert other.problem.source == with_sizes(FILE, {"ROWS": 5, "4096": 60})


def test_derived_sizes_scale_all_that_fits_together(specs: dict[str, ProblemSpec]) -> None:
    found = {one.label: shapes(one.problem)["x"] for one in asyncio.run(other_sizes(specs["linear"]))}
    assert list(found) == ["smaller", "odd", "larger"]
    assert found["smaller"][0] < found["odd"][0] < 1000 < found["larger"][0]
    assert found["odd"][0] % 2 == found["odd"][1] % 2 == 1


def test_a_model_that_cannot_have_all_of_them_gets_one_that_it_can(specs: dict[str, ProblemSpec]) -> None:
    spec = specs["heads"]
    found = {one.label: one.sizes for one in asyncio.run(other_sizes(spec))}
    assert found["odd"] == {"ROWS": odd(300, 1)}
    assert found["smaller"].keys() == {"ROWS", "WIDTH"}
    with pytest.raises(SizeError, match=r"heads\.py:6: the file raised RuntimeError"):
        asyncio.run(resize(spec, [{"WIDTH": 60}]))


def test_a_file_without_sizes_says_so(specs: dict[str, ProblemSpec]) -> None:
    with pytest.raises(NoOtherSizes, match="no sizes"):
        asyncio.run(other_sizes(specs["fixed"]))
