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
    precision: str = "any"
    """Which precision counts: "any" within the tolerance, or "fp32" (what is as exact as the reference's own)."""
    libraries: str = "refuse"
    """Whether kernels that call a library count: "refuse" or "label"."""
    thorough: bool = False
    """Take the time that a single verdict deserves (``timing.THOROUGH``)."""
    peak_gflops: float | None = None
    bandwidth_gbs: float | None = None


class Measure(Struct, frozen=True, tag_field="do", tag="measure"):
    """Measure the device's peaks; where they are given, they were measured before and are taken."""

    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None


class OpenProblem(Struct, frozen=True, tag_field="do", tag="open"):
    """``floor_ms``: as it was found when the problem was opened before, None where it is to be found."""

    problem: ProblemSpec
    floor_ms: float | None = None


class JudgeKernel(Struct, frozen=True, tag_field="do", tag="judge"):
    problem: str
    library: str
    build: BuildReport


class RunHeat(Struct, frozen=True, tag_field="do", tag="heat"):
    """``libraries``: variant id -> path of its library."""

    problem: str
    libraries: dict[str, str]


class Cancel(Struct, frozen=True, tag_field="do", tag="cancel"):
    """Give up the request in progress; read while a kernel runs."""


AnyRequest = Measure | OpenProblem | JudgeKernel | RunHeat | Cancel


class Ready(Struct, frozen=True, tag_field="is", tag="ready"):
    """The judge has imported torch and can be asked."""

    torch: str


class AtStage(Struct, frozen=True, tag_field="is", tag="stage"):
    stage: Stage


class Measured(Struct, frozen=True, tag_field="is", tag="measured"):
    bandwidth_gbs: float
    peak_gflops: float


class ProblemOpened(Struct, frozen=True, tag_field="is", tag="opened"):
    """``degenerate``, ``tightened``: see :class:`engine.evaluation.null_kernels.NullResult`."""

    eager: Baseline
    floor_ms: float | None
    degenerate: str = ""
    tightened: str = ""


class Judged(Struct, frozen=True, tag_field="is", tag="judged"):
    verdict: Verdict


class HeatRun(Struct, frozen=True, tag_field="is", tag="heat_run"):
    standings: tuple[Standing, ...]


class Failed(Struct, frozen=True, tag_field="is", tag="failed"):
    """The request could not be carried out; one sentence. ``variant``: whose kernel did in a heat what it must not."""

    reason: str
    variant: str | None = None


AnyAnswer = Ready | AtStage | Measured | ProblemOpened | Judged | HeatRun | Failed

_encoder = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(AnyRequest)
_answers = msgspec.json.Decoder(AnyAnswer)


def line(message: AnyRequest | AnyAnswer) -> bytes:
    return _encoder.encode(message) + b"\n"


def decode_request(text: bytes) -> AnyRequest:
    request: AnyRequest = _requests.decode(text)
    return request


def decode_answer(text: bytes) -> AnyAnswer:
    answer: AnyAnswer = _answers.decode(text)
    return answer
