"""Inspections are cached, unless the file could depend on more than its text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.problem import catalog, spec_cache
from engine.problem.catalog import inspect_files
from engine.problem.spec import ProblemSpec
from engine.problem.spec_cache import SpecCache, is_self_contained

PROBLEM = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(SIZE, 8)]


def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpecCache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return SpecCache()


async def test_a_problem_is_inspected_once_and_known_and_new_ones_come_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"relu{size}.py" for size in (2, 4, 6)]
    for size, path in zip((2, 4, 6), paths, strict=True):
        path.write_text(PROBLEM.replace("SIZE", str(size)))
    found = await inspect_files(paths[:2])
    assert [type(one) for one in found] == [ProblemSpec, ProblemSpec]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('no inspection can import this')")
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", str(tmp_path / "site"))
        assert await inspect_files(paths[:2]) == found
        assert isinstance((await inspect_files(paths[2:]))[0], catalog.ProblemFailure)

    paths[0].write_text(PROBLEM.replace("SIZE", "32"))
    paths[2].write_text("raise ValueError('not this one')\n")
    first, second, third = await inspect_files(paths)
    assert isinstance(first, ProblemSpec)
    assert first.inputs[0].shape == (32, 8)
    assert second == found[1]
    assert isinstance(third, catalog.ProblemFailure)
    assert "not this one" in str(third)


def test_a_damaged_or_unwritable_cache_costs_nothing_but_time(tmp_path: Path, cache: SpecCache) -> None:
    spec = ProblemSpec(id="relu", name="relu", path="relu.py", source=PROBLEM, tensors=())
    cache.put(spec.id, spec.path, PROBLEM, spec)
    assert cache.get(spec.id, "elsewhere/relu.py", PROBLEM) == replace(spec, path="elsewhere/relu.py")
    (kept,) = (tmp_path / "cache" / "kernel-tui" / "specs").iterdir()
    for content in (b'{"id": 3', b'{"id": "\xff"}', b'{"x": ' + b"[" * 100_000):
        kept.write_bytes(content)
        assert cache.get(spec.id, spec.path, PROBLEM) is None
    kept.unlink()
    os.mkfifo(kept)
    assert cache.get(spec.id, spec.path, PROBLEM) is None
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("a file where the directory should be")
    cache.put(spec.id, spec.path, PROBLEM, spec)
    assert cache.get(spec.id, spec.path, PROBLEM) is None


def test_the_oldest_are_forgotten_whatever_lies_between_them(
    tmp_path: Path, cache: SpecCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_cache, "MOST_KEPT", 6)
    directory = tmp_path / "cache" / "kernel-tui" / "specs"
    (directory / "directory").mkdir(parents=True)
    (directory / "dangling").symlink_to("nowhere")
    for path in (directory / "directory", directory / "dangling"):
        os.utime(path, (0, 0), follow_symlinks=False)
    for number in range(10):
        source = f"{PROBLEM}# {number}\n"
        cache.put("relu", "relu.py", source, ProblemSpec("relu", "relu", "relu.py", source, ()))
    assert len(list(directory.glob("*.json"))) <= 6
    assert (directory / "directory").is_dir()
    assert cache.get("relu", "relu.py", source) is not None


@pytest.mark.parametrize(
    "line",
    [
        "from helper import SIZE",
        "from . import helper",
        "import os",
        "SIZE = int(open('size').read())",
        "WEIGHTS = torch.load('weights.pt')",
        "from torch.utils.cpp_extension import load_inline; x = torch.utils.cpp_extension",
        "def broken(:",
    ],
)
def test_what_could_depend_on_more_than_its_text_is_not_kept(line: str) -> None:
    assert is_self_contained(PROBLEM)
    assert not is_self_contained(f"{PROBLEM}\n{line}\n")
