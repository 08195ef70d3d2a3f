"""A small softmax problem, opened once in a real judge: on the CPU and on the first GPU, if any."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.config.schema import EvaluationConfig
from engine.devices.hardware import discover
from engine.evaluation.local_evaluator import LocalEvaluator
from engine.problem.c_header import derive_header
from engine.problem.inspection import inspect_file
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.verdict import Standing, Verdict

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
    """An evaluator with a problem opened from ``source``. ``judge`` and ``runoff`` block until done."""

    def __init__(
        self, language: Language, directory: Path, source: str = PROBLEM, name: str = "softmax", **settings: Any
    ) -> None:
        self.language = language
        config = EvaluationConfig(device="cuda" if language == "cu" else "cpu", **settings)
        self._loop = asyncio.new_event_loop()
        self.evaluator = LocalEvaluator(config, directory)
        self._loop.run_until_complete(self.evaluator.start())
        self.open(source, name, directory)
        self._first = self.problem, self.header

    def open(self, source: str, name: str, directory: Path) -> None:
        """Switch to another problem, written into ``directory``."""
        file = directory / f"{name}.py"
        file.write_text(source)
        self.problem: ProblemSpec = inspect_file(file, name)
        self.header = derive_header(self.problem, self.language) if self.problem.c_refusal is None else ""
        self.opened = self._loop.run_until_complete(self.evaluator.open(self.problem, self.header))

    def go_back(self) -> None:
        """Switch back to the first problem."""
        self.problem, self.header = self._first

    def judge(self, source: str, language: Language | None = None) -> Verdict:
        """Return the verdict. Like a search, ask again if other tests left no room for one."""
        for _ in range(_TRIES):
            verdict = self._loop.run_until_complete(
                self.evaluator.evaluate(self.problem, language or self.language, source, lambda stage: None)
            )
            if not (verdict.status == "error" and "too busy" in verdict.reason):
                break
        return verdict

    def runoff(self, sources: dict[str, str]) -> tuple[Standing, ...]:
        kernels = {name: (self.language, source) for name, source in sources.items()}
        return self._loop.run_until_complete(self.evaluator.runoff(self.problem, kernels))

    def run(self, coroutine: object) -> object:
        return self._loop.run_until_complete(coroutine)  # type: ignore[arg-type]

    def close(self) -> None:
        self._loop.run_until_complete(self.evaluator.close())
        self._loop.close()


@pytest.fixture(scope="session")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Language], Bench]]:
    """Return the bench for a language, created on first use because a judge takes seconds to start."""
    made: dict[Language, Bench] = {}

    def one(language: Language) -> Bench:
        if language not in made:
            if language == "cu":
                if shutil.which("nvcc") is None or not any(device.kind == "cuda" for device in discover()):
                    pytest.skip("needs an NVIDIA GPU and nvcc")
            elif shutil.which("g++") is None:
                pytest.fail("these tests need g++")
            made[language] = Bench(language, tmp_path_factory.mktemp(f"bench_{language}"), max_pairs=20)
        made[language].go_back()
        return made[language]

    yield one
    for bench in made.values():
        bench.close()


@pytest.fixture(params=["cpp", pytest.param("cu", marks=pytest.mark.gpu)])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[Language], Bench]) -> Bench:
    return bench_of(request.param)
