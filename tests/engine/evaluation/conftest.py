"""A small softmax problem, opened once in a real judge: on the CPU always, on the first GPU where there is one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config import EvaluationConfig
from engine.devices import discover
from engine.problem.header import derive_header
from engine.problem.inspect import inspect_file
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import Standing, Verdict
from engine.workers.local import LocalEvaluator

ROWS, COLUMNS = 500, 1003
_TRIES = 6

PROBLEM = f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.randn({ROWS}, {COLUMNS})]

def get_init_inputs():
    return []
"""


class Bench:
    """One evaluator with the problem opened; ``judge`` and ``heat`` run to their end."""

    def __init__(self, form: Form, directory: Path, **settings: Any) -> None:
        self.form = form
        config = EvaluationConfig(device="cuda" if form == "cu" else "cpu", **settings)
        self._loop = asyncio.new_event_loop()
        self.evaluator = LocalEvaluator(config, directory)
        self._loop.run_until_complete(self.evaluator.start())
        self.open(PROBLEM, "softmax", directory)
        self._softmax = self.problem, self.header

    def open(self, source: str, name: str, directory: Path) -> None:
        """Another problem from now on, written into ``directory``."""
        file = directory / f"{name}.py"
        file.write_text(source)
        self.problem: ProblemSpec = inspect_file(file, name)
        self.header = derive_header(self.problem, self.form) if self.problem.c_refusal is None else ""
        self.opened = self._loop.run_until_complete(self.evaluator.open(self.problem, self.header))

    def go_back(self) -> None:
        """To the softmax problem."""
        self.problem, self.header = self._softmax

    def judge(self, source: str, form: Form | None = None) -> Verdict:
        """The verdict; where the tests beside this one leave no room for any, it is asked for again, as by a search."""
        for _ in range(_TRIES):
            verdict = self._loop.run_until_complete(
                self.evaluator.evaluate(self.problem, form or self.form, source, lambda stage: None)
            )
            if not (verdict.status == "error" and "machine this busy" in verdict.reason):
                break
        return verdict

    def heat(self, sources: dict[str, str]) -> tuple[Standing, ...]:
        kernels = {name: (self.form, source) for name, source in sources.items()}
        return self._loop.run_until_complete(self.evaluator.heat(self.problem, kernels))

    def run(self, coroutine: object) -> object:
        return self._loop.run_until_complete(coroutine)  # type: ignore[arg-type]

    def close(self) -> None:
        self._loop.run_until_complete(self.evaluator.close())
        self._loop.close()


@pytest.fixture(scope="session")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Form], Bench]]:
    """The bench for kernels of a form, made when first asked for: a judge takes seconds to start."""
    made: dict[Form, Bench] = {}

    def one(form: Form) -> Bench:
        if form not in made:
            if form == "cu":
                if shutil.which("nvcc") is None or not any(device.kind == "cuda" for device in discover()):
                    pytest.skip("needs an NVIDIA GPU and nvcc")
            elif shutil.which("g++") is None:
                pytest.fail("these tests need g++")
            made[form] = Bench(form, tmp_path_factory.mktemp(f"bench_{form}"), max_pairs=20)
        made[form].go_back()
        return made[form]

    yield one
    for bench in made.values():
        bench.close()


@pytest.fixture(params=["cpp", pytest.param("cu", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[Form], Bench]) -> Bench:
    return bench_of(request.param)
