"""Messages between the engine and a worker, and between a worker and its judging process. All are JSON.

The engine sends an :class:`Order` as the argument of a Dask task. Workers answer through Dask's events: a
:class:`Report` on the engine's own topic, and a :class:`Beat` on a topic that all engines share. No message contains a
Python object. Processes unpickle only Dask's own messages, which mutual TLS protects.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine import __version__
from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample
from engine.evaluation.device_waits import Wait
from engine.evaluation.evaluator import Opened
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.verdict import Baseline, BuildReport, Stage, Standing, Verdict

BEATS = "kernel-tui-workers"
"""The topic of heartbeats."""
BEAT_S = 1.0
"""Seconds between two heartbeats of a worker, and of its judging process."""
DEVICE, BUILDER = "kernel-tui-device", "kernel-tui-builder"
"""Names of a worker's Dask resources."""
PLUGIN = "kernel-tui"
_ENGINE = Path(__file__).resolve().parents[1]
_JUDGE_CODE = (
    *(f"{folder}/**/*.py" for folder in ("cluster", "devices", "evaluation", "problem", "session/records", "system")),
    "config/tolerance*.py",
)


def topic_of(engine: str) -> str:
    """Return the topic on which the engine ``engine`` receives reports."""
    return f"kernel-tui-{engine}"


@cache
def judge_code() -> str:
    """Return a digest of the code that judges. Hosts with equal digests give comparable verdicts."""
    digest = hashlib.sha256()
    for pattern in _JUDGE_CODE:
        for file in sorted(_ENGINE.glob(pattern)):
            digest.update(file.relative_to(_ENGINE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def version() -> str:
    """Return this program's version together with :func:`judge_code`."""
    return f"{__version__} ({judge_code()})"


@cache
def torch_version() -> str:
    """Return PyTorch's version without the build tag (``+cpu``, ``+cu130``); "" if it is not installed."""
    try:
        return metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


class Place(Struct, frozen=True):
    """A problem as the engine defines it, with the C header of its kernels."""

    problem: ProblemSpec
    header: str


class Kernel(Struct, frozen=True):
    """A kernel's text and language."""

    language: Language
    source: str


class Measure(Struct, frozen=True, tag="measure"):
    """Measure the device's peaks."""


class Open(Struct, frozen=True, tag="open"):
    place: Place


class Build(Struct, frozen=True, tag="build"):
    place: Place
    kernel: Kernel


class Judge(Struct, frozen=True, tag="judge"):
    place: Place
    kernel: Kernel


class Runoff(Struct, frozen=True, tag="runoff"):
    place: Place
    kernels: dict[str, Kernel]


class Compile(Struct, frozen=True, tag="compile"):
    """Time the reference compiled with ``torch.compile``."""

    place: Place


class Evict(Struct, frozen=True, tag="evict"):
    """Evict the session's open problems."""


class Presence(Struct, frozen=True, tag="presence"):
    """The presence of an engine on a device. When this task ends, the engine's judges on the device end too."""


class Sleep(Struct, frozen=True, tag="sleep"):
    """Do nothing for ``seconds``, to measure the transport (``benchmarks/cluster.py``)."""

    seconds: float
    payload: str = ""


AnyWork = Measure | Open | Build | Judge | Runoff | Compile | Evict | Presence | Sleep


class Order(Struct, frozen=True):
    """A task for one device.

    ``evaluation``: the config's evaluation table, without the device. ``bandwidth_gbs``, ``peak_gflops``: the device's
    peaks, if an earlier order measured them.
    """

    attempt: str
    engine: str
    evaluation: dict[str, Any]
    work: AnyWork
    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None


class Cancel(Struct, frozen=True, tag="cancel"):
    """Message from a worker to its judging process: end an attempt."""

    attempt: str


class Perform(Struct, frozen=True, tag="perform"):
    """Message from a worker to its judging process: carry out an order."""

    order: Order


class AtStage(Struct, frozen=True, tag="stage"):
    stage: Stage


class Waits(Struct, frozen=True, tag="waits"):
    """Another process on the host occupies the device."""

    wait: Wait


class WaitEnded(Struct, frozen=True, tag="wait_ended"):
    seconds: float
    device: str = ""


class Alive(Struct, frozen=True, tag="alive"):
    """A heartbeat from a judging process."""


class Measured(Struct, frozen=True, tag="measured"):
    bandwidth_gbs: float
    peak_gflops: float


class OpenedProblem(Struct, frozen=True, tag="opened"):
    opened: Opened


class Built(Struct, frozen=True, tag="built"):
    report: BuildReport


class Judged(Struct, frozen=True, tag="judged"):
    verdict: Verdict


class RunoffTimed(Struct, frozen=True, tag="runoff_timed"):
    standings: tuple[Standing, ...]


class Compiled(Struct, frozen=True, tag="compiled"):
    baseline: Baseline


class Done(Struct, frozen=True, tag="done"):
    payload: str = ""


class Failed(Struct, frozen=True, tag="failed"):
    """The work failed. ``reason``: one sentence. ``variant``: the kernel that failed in a runoff.

    ``host``: whether the host is at fault (no compiler, a full disk, a killed process), so that another host may
    succeed.
    """

    reason: str
    variant: str | None = None
    host: bool = False


AnyFinal = Measured | OpenedProblem | Built | Judged | RunoffTimed | Compiled | Done | Failed
AnyAnswer = AnyFinal | AtStage | Waits | WaitEnded | Alive
FINAL = (Measured, OpenedProblem, Built, Judged, RunoffTimed, Compiled, Done, Failed)


class Report(Struct, frozen=True):
    """An answer to an attempt. ``attempt`` is "" for answers that do not concern an attempt."""

    attempt: str
    answer: AnyAnswer


class Beat(Struct, frozen=True, tag="beat"):
    """A worker's heartbeat.

    ``address``: the Dask worker's address. ``start``: increases with each start of the worker. ``lacks``: why this host
    cannot judge, and what to type; "" if it can. ``torch``: see :func:`torch_version`.
    ``running``: attempts in progress, of any engine. ``stuck``: attempts with a judging process that has been silent
    for some seconds.
    """

    address: str
    start: str
    version: str
    device: DeviceFact
    builders: int
    torch: str = ""
    sandbox: str = ""
    lacks: str = ""
    sample: DeviceSample | None = None
    running: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()


class AnyBeatDevice(Struct, frozen=True):
    """The device fields that every release sends."""

    id: str = ""
    host: str = ""


class AnyBeat(Struct, frozen=True):
    """The fields of a heartbeat that an engine of any release understands, so that it can refuse workers of other
    releases.
    """

    version: str
    start: str = ""
    device: AnyBeatDevice = AnyBeatDevice()


class Leaving(Struct, frozen=True, tag="leaving"):
    """Message from a worker that shuts down cleanly. ``start``: see :class:`Beat`; "" from older releases."""

    device: str
    start: str = ""


AnyInward = Perform | Cancel
_encoder = msgspec.json.Encoder()
encode = _encoder.encode
decode_order = msgspec.json.Decoder(Order).decode
decode_inward = msgspec.json.Decoder(AnyInward).decode
decode_report = msgspec.json.Decoder(Report).decode
decode_from_worker = msgspec.json.Decoder(Beat | Leaving).decode
decode_any_beat = msgspec.json.Decoder(AnyBeat).decode
