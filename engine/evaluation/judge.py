"""The judge: the one trusted process of a device. It owns reference, inputs, expected outputs and the clock.

``python -m engine.quickly engine.evaluation.judge SETTINGS`` answers one request at a time
(``engine.evaluation.messages``), each alone on the device. It ends when its standard input does.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import traceback
from collections import OrderedDict
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace

from engine.evaluation import heat, messages, native, roofline, verdicts
from engine.evaluation.baseline import time_eager
from engine.evaluation.checks import Tolerances
from engine.evaluation.device import JudgeDevice
from engine.evaluation.locks import alone
from engine.evaluation.messages import AnyAnswer, JudgeSettings
from engine.evaluation.null_kernels import try_null_kernels
from engine.evaluation.opened import OpenedProblem
from engine.evaluation.runner.isolation import die_with_parent
from engine.evaluation.sandbox import RunnerEnded
from engine.evaluation.trials import JudgedProblem
from engine.events import Stage

_PROBLEMS_KEPT = {"cpu": 8, "cuda": 2}
_MOST_S = 900
"""A request that takes longer ends this process. Engines are less patient, but one may stand still."""


class Judge:
    def __init__(self, settings: JudgeSettings, requests: int, answers: int) -> None:
        self._settings = settings
        self._requests, self._answers = requests, answers
        self._pid = os.getpid()
        self._buffer = b""
        self._cancelled = False
        self._device = JudgeDevice(settings.kind, settings.threads)
        if settings.kind == "cpu":
            native.prepare()
        self._peaks = (settings.bandwidth_gbs, settings.peak_gflops)
        self._specs: dict[str, messages.OpenProblem] = {}
        self._opened: OrderedDict[str, OpenedProblem] = OrderedDict()

    def serve(self) -> None:
        self._answer(messages.Ready(str(torch.__version__)))
        while (request := self._next()) is not None:
            self._cancelled = False
            if isinstance(request, messages.Cancel):
                continue
            self._on_stage("waiting")
            with alone(self._settings.device_id, self._poll_cancelled) as held:
                signal.alarm(_MOST_S)
                answer = self._carry_out(request) if held else messages.Failed("cancelled")
                signal.alarm(0)
            self._answer(answer)  # not alone: an engine that stands still may never read it

    def _carry_out(self, request: messages.AnyRequest) -> AnyAnswer:
        try:
            match request:
                case messages.Measure():
                    if request.bandwidth_gbs is not None and request.peak_gflops is not None:
                        self._peaks = measured = request.bandwidth_gbs, request.peak_gflops
                    else:
                        self._peaks = measured = roofline.measure(self._device)
                    return messages.Measured(*measured)
                case messages.OpenProblem():
                    self._specs[request.problem.id] = request
                    if (before := self._opened.pop(request.problem.id, None)) is not None:
                        before.close()
                    return self._open(request)
                case messages.JudgeKernel():
                    opened = self._problem(request.problem)
                    verdict = verdicts.judge(
                        opened, Path(request.library), request.build, self._on_stage, self._poll_cancelled
                    )
                    return messages.Judged(replace(verdict, flags=(*verdict.flags, *opened.nulls.flags)))
                case messages.RunHeat():
                    libraries = {name: Path(path) for name, path in request.libraries.items()}
                    opened = self._problem(request.problem)
                    return messages.HeatRun(heat.run_heat(opened, libraries, self._poll_cancelled))
            return messages.Failed(f"unknown request {request}")
        except heat.FoundOut as found:
            return messages.Failed(str(found), found.variant)
        except RunnerEnded as ended:
            return messages.Failed(str(ended))
        except Exception as error:
            if (lack := _lack_of_memory(error)) is not None:
                return messages.Failed(lack)
            traceback.print_exc()
            return messages.Failed(_one_line(error))
        except SystemExit as error:
            if os.getpid() != self._pid:
                raise  # a process that the problem forked must end, not judge
            traceback.print_exc()
            return messages.Failed(f"the problem's own code called sys.exit({error.code!r})")

    def _open(self, request: messages.OpenProblem) -> messages.ProblemOpened:
        while len(self._opened) >= _PROBLEMS_KEPT[self._settings.kind]:
            self._opened.popitem(last=False)[1].close()
        judged = JudgedProblem(request.problem, self._device, self._settings.trials)
        eager = time_eager(judged)
        judged.prepare()
        if self._peaks[0] is None or self._peaks[1] is None:
            self._peaks = roofline.measure(self._device)
        bandwidth, gflops = self._peaks
        floor = request.floor_ms or roofline.floor_ms(request.problem, self._device, bandwidth or 1.0, gflops or 1.0)
        self._specs[request.problem.id] = replace(request, floor_ms=floor)
        eager_ms = eager.timing.median_ms if eager.timing is not None else None
        nulls = try_null_kernels(judged, Tolerances(self._settings.tolerance_fp32, self._settings.tolerance_other))
        opened = OpenedProblem(judged, self._settings, eager_ms, floor, nulls)
        opened.prepare()
        self._opened[request.problem.id] = opened
        return messages.ProblemOpened(eager, floor, nulls.degenerate, nulls.tightened)

    def _problem(self, name: str) -> OpenedProblem:
        if name not in self._opened:
            self._open(self._specs[name])
        self._opened.move_to_end(name)
        return self._opened[name]

    # The engine's words

    def _next(self) -> messages.AnyRequest | None:
        while b"\n" not in self._buffer:
            chunk = os.read(self._requests, 1 << 20)
            if not chunk:
                return None
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return messages.decode_request(line)

    def _poll_cancelled(self) -> bool:
        """Whether a cancel request has come in since the request in progress."""
        if not self._cancelled and select.select([self._requests], [], [], 0)[0]:
            self._cancelled = not isinstance(self._next(), messages.OpenProblem)
        return self._cancelled

    def _on_stage(self, stage: Stage) -> None:
        self._answer(messages.AtStage(stage))

    def _answer(self, answer: AnyAnswer) -> None:
        data = messages.line(answer)
        while data:
            data = data[os.write(self._answers, data) :]


def _lack_of_memory(error: Exception) -> str | None:
    """In one sentence, None if ``error`` is another one: where it was asked for is of no interest."""
    text = " ".join(str(error).split())
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in text:
        return None
    asked = re.search(r"tried to allocate ([\d.]+ ?\w+)", text)
    what = f", it asked for {asked.group(1)}" if asked is not None else ""
    return f"the problem needs more memory than there is{what}; choose smaller sizes"


def _one_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def main() -> int:
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)  # who forks is a problem
    settings = msgspec.json.decode(sys.argv[1], type=JudgeSettings)
    # What a problem prints must not get between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    Judge(settings, 0, answers).serve()
    return 0
