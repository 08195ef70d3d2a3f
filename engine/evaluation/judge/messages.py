"""Messages between engine and judge: one JSON line each, over the judge's standard input and output.

Messages contain kernels as text (:class:`~engine.evaluation.build.kernel_source.KernelSource`), because the judging
host builds the kernels. The engine and the judge therefore do not need a shared disk.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from engine.evaluation.build.kernel_source import KernelSource
from engine.problem.spec import ProblemSpec
from engine.session.records.verdict import Baseline, Stage, Standing, Verdict


class JudgeSettings(Struct, frozen=True):
    """A judge's settings: the config's evaluation section, resolved for one device."""

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
    """Required precision: "any" (any precision within the tolerance) or "fp32" (as precise as the reference's own
    dtype).
    """
    libraries: str = "refuse"
    """Policy for kernels that call a library: "refuse" or "label"."""
    thorough: bool = False
    """Whether to spend the time that a reliable single verdict takes (``POLICY.pairs.thorough``)."""
    peak_gflops: float | None = None
    bandwidth_gbs: float | None = None
    modules: bool = False
    """Whether to expect ``.py`` kernels. If true, the parent process of their runners starts together with the judge.
    """


class Measure(Struct, frozen=True, tag_field="do", tag="measure"):
    """Measure the device's peaks, except those that the message contains from an earlier measurement."""

    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None


class OpenProblem(Struct, frozen=True, tag_field="do", tag="open"):
    """Open a problem. ``sol_ms``: the SOL bound from an earlier opening, or None to compute it."""

    problem: ProblemSpec
    sol_ms: float | None = None


class JudgeKernel(Struct, frozen=True, tag_field="do", tag="judge"):
    """Judge a kernel of the open problem with the id ``problem``. The built kernel comes from the host's build cache or
    from a new build.
    """

    problem: str
    kernel: KernelSource


class TimeRunoff(Struct, frozen=True, tag_field="do", tag="runoff"):
    """Time correct kernels of the open problem with the id ``problem`` side by side. ``kernels``: the kernels by
    variant id.
    """

    problem: str
    kernels: dict[str, KernelSource]


class Evict(Struct, frozen=True, tag_field="do", tag="evict"):
    """Release device memory; the judge reopens problems on request. The answer is ``Evicted``."""


class Cancel(Struct, frozen=True, tag_field="do", tag="cancel"):
    """Cancel the request in progress. The judge reads this message even while a kernel is running."""


AnyRequest = Measure | OpenProblem | JudgeKernel | TimeRunoff | Evict | Cancel


class Ready(Struct, frozen=True, tag_field="is", tag="ready"):
    """Report that the judge has imported torch and accepts requests."""

    torch: str


class AtStage(Struct, frozen=True, tag_field="is", tag="stage"):
    stage: Stage


class AwaitsMemory(Struct, frozen=True, tag_field="is", tag="awaits_memory"):
    """Report that the judge is waiting until ``needed_bytes`` of device memory are free; ``free_bytes`` are free now.

    ``pid``: the process that uses the most device memory, or 0 if unknown. The judge repeats this message until it
    sends ``MemoryFound`` or the answer.
    """

    needed_bytes: int
    free_bytes: int
    pid: int = 0


class MemoryFound(Struct, frozen=True, tag_field="is", tag="memory_found"):
    """Report that the judge's wait for memory is over."""


class Evicted(Struct, frozen=True, tag_field="is", tag="evicted"):
    """Report that the judge now occupies no more memory than when it started."""


class Measured(Struct, frozen=True, tag_field="is", tag="measured"):
    bandwidth_gbs: float
    peak_gflops: float


class ProblemOpened(Struct, frozen=True, tag_field="is", tag="opened"):
    """Report that the judge has opened a problem. ``degenerate``: a description of trivial outputs that pass every
    check, or "" if none pass.
    """

    eager: Baseline
    sol_ms: float | None
    degenerate: str = ""


class Judged(Struct, frozen=True, tag_field="is", tag="judged"):
    """A verdict. ``verdict.build`` is the build report from the judging host."""

    verdict: Verdict


class RunoffTimed(Struct, frozen=True, tag_field="is", tag="runoff_timed"):
    standings: tuple[Standing, ...]


class Failed(Struct, frozen=True, tag_field="is", tag="failed"):
    """A failed request. ``reason``: one sentence. ``variant``: the variant that failed in a runoff."""

    reason: str
    variant: str | None = None


AnyAnswer = (
    Ready | AtStage | AwaitsMemory | MemoryFound | Evicted | Measured | ProblemOpened | Judged | RunoffTimed | Failed
)

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
