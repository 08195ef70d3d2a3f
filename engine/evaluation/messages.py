"""What engine and judge say to each other: one JSON line each way, over the judge's standard input and output."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.events import Stage
from engine.problem.spec import ProblemSpec
from engine.verdict import Baseline, BuildReport, Standing, Verdict


class JudgeSettings(Struct, frozen=True):
    """How a judge works: the evaluation section of the config, resolved for one device."""

    kind: str
    device_id: str
    device_name: str
    threads: int
    trials: int
    max_pairs: int
    deadline_s: float
    memory_bytes: int
    tolerance_fp32: float
    tolerance_other: float
    isolate: bool
    peak_gflops: float | None = None
    bandwidth_gbs: float | None = None


class Request(Struct, frozen=True, tag_field="do"):
    pass


class Measure(Request, tag="measure"):
    """Measure the device's peaks."""


class OpenProblem(Request, tag="open"):
    problem: ProblemSpec


class JudgeKernel(Request, tag="judge"):
    problem: str
    library: str
    build: BuildReport


class RunHeat(Request, tag="heat"):
    """``libraries``: variant id -> path of its library."""

    problem: str
    libraries: dict[str, str]


class Cancel(Request, tag="cancel"):
    """Give up the request in progress; read while a kernel runs."""


AnyRequest = Measure | OpenProblem | JudgeKernel | RunHeat | Cancel


class Answer(Struct, frozen=True, tag_field="is"):
    pass


class Ready(Answer, tag="ready"):
    """The judge has imported torch and can be asked."""

    torch: str


class AtStage(Answer, tag="stage"):
    stage: Stage


class Measured(Answer, tag="measured"):
    bandwidth_gbs: float
    peak_gflops: float


class ProblemOpened(Answer, tag="opened"):
    eager: Baseline
    floor_ms: float | None


class Judged(Answer, tag="judged"):
    verdict: Verdict


class HeatRun(Answer, tag="heat_run"):
    standings: tuple[Standing, ...]


class Failed(Answer, tag="failed"):
    """The request could not be carried out; one sentence."""

    reason: str


AnyAnswer = Ready | AtStage | Measured | ProblemOpened | Judged | HeatRun | Failed

_encoder = msgspec.json.Encoder()
decode_request = msgspec.json.Decoder(AnyRequest).decode
decode_answer = msgspec.json.Decoder(AnyAnswer).decode


def line(message: Request | Answer) -> bytes:
    return _encoder.encode(message) + b"\n"
