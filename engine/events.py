"""Every fact that a session can record.

Events are small frozen structs, told apart by their ``kind`` tag, stored as JSON rows of the session file. Large texts
(sources, prompts, replies, logs) are blobs; an event names them by digest. State is a pure fold over
events (``engine.state``). A kind is never changed in meaning: a new meaning is a new kind.

Node ids: a problem is its slug (``softmax``), a round ``softmax/r2``, an idea ``i12``, a variant ``v34``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from engine.models.protocol import CallSite, FailureKind, Finish, Purpose, Usage
from engine.problem.spec import Form, ProblemSpec
from engine.verdict import AtSizes, Baseline, Standing, Verdict

StopReason = Literal["finished", "stopped", "budget", "waiting", "signal", "error"]
BY_HAND = "hand"
"""Proposer of ideas and kernels that a person wrote."""
Stage = Literal["queued", "building", "waiting", "checking", "timing"]


class Event(Struct, frozen=True, tag_field="kind", kw_only=True, omit_defaults=True, gc=False):
    """Base of all events. Made of JSON, so in no cycle: the collector need not look at them, nor at verdicts."""


class SessionCreated(Event, tag="session_created"):
    """First event of a session. ``config``: digest of the frozen TOML text."""

    name: str
    version: str
    config: str
    seed: int


class DeviceFact(Struct, frozen=True, omit_defaults=True):
    """A device that the session uses. ``bandwidth_gbs`` and ``peak_gflops`` are measured, None until then."""

    id: str
    kind: Literal["cpu", "cuda"]
    name: str
    arch: str
    memory_bytes: int
    cores: int
    bandwidth_gbs: float | None = None
    peak_gflops: float | None = None


class EngineStarted(Event, tag="engine_started"):
    pid: int
    host: str
    version: str
    resumed: bool
    devices: tuple[DeviceFact, ...]
    sandbox: str


class EngineStopped(Event, tag="engine_stopped"):
    """The engine ended by itself. An engine that died has no such event after its ``engine_started``."""

    reason: StopReason
    message: str


class DeviceMeasured(Event, tag="device_measured"):
    """Peaks of a device as the judge measured them."""

    device: DeviceFact


class DeviceAwaited(Event, tag="device_awaited"):
    """Another process holds a device that the search wants: ``pid``, whose command is ``command`` ("" if unknown),
    since ``held_since`` (Unix seconds, None if unknown). It has been waited for ``seconds`` when this is recorded."""

    device: str
    pid: int
    command: str = ""
    held_since: float | None = None
    seconds: float = 0.0


class DeviceFree(Event, tag="device_free"):
    """The wait for a device is over, after ``seconds``."""

    device: str
    seconds: float


class ProblemAdded(Event, tag="problem_added"):
    """``header``: the C header a kernel is compiled with ("" where no C form exists)."""

    problem: ProblemSpec
    form: Form
    header: str


class ProblemRefused(Event, tag="problem_refused"):
    """A problem that cannot be searched: it raised, no proposer has a family for it, or it needs what is absent."""

    problem: str
    path: str
    reason: str


class BaselineMeasured(Event, tag="baseline_measured"):
    """``degenerate``: which kernels that compute nothing pass every check of the problem, in words. ``tightened``: why
    its tolerance is smaller than configured. Both come with the eager baseline."""

    problem: str
    baseline: Baseline
    floor_ms: float | None = None
    degenerate: str = ""
    tightened: str = ""


class Carried(Struct, frozen=True, omit_defaults=True):
    """A variant that is carried to the next round, and why."""

    variant: str
    why: str


class RoundStarted(Event, tag="round_started"):
    """``parents`` is empty in round 0, where the first kernels are written from the reference alone."""

    problem: str
    round: int
    parents: tuple[Carried, ...]


class IdeaProposed(Event, tag="idea_proposed"):
    """``parent``: the variant that the idea works on, None for a first kernel. ``data`` is the proposer's own."""

    idea: str
    problem: str
    round: int
    parent: str | None
    category: str
    text: str
    proposer: str
    data: dict[str, Any] = {}


class IdeaWaiting(Event, tag="idea_waiting"):
    """An idea that no proposer of this session has a kernel for, such as one in words that none of them reads: it
    waits for an author."""

    idea: str
    reason: str


class ModelCallStarted(Event, tag="model_call_started"):
    """One attempt of a call to a model is about to be sent. Recorded before a byte goes out.

    ``call``: the same for all attempts of a call (``c12``). ``model``: the name of the config's ``[[models]]`` table.
    ``prompt``: blob digest of ``Prompt.encode()``. ``tokens`` and ``dollars``: the most that the attempt may cost, kept
    back from the budget until it ends; ``dollars`` is None where the price is unknown.
    """

    call: str
    attempt: int
    provider: str
    model: str
    site: CallSite
    prompt: str
    tokens: int
    dollars: float | None


class ModelCallFailed(Event, tag="model_call_failed"):
    """An attempt failed. ``wait_s``: seconds until the next one, None where the call was given up.

    ``usage`` is what was billed all the same: zeros where the server refused, None where nobody knows; then the
    attempt counts as "at most" what was kept back for it. ``dollars``: None where usage or price is unknown.
    """

    call: str
    attempt: int
    failure: FailureKind
    message: str
    wait_s: float | None
    seconds: float
    usage: Usage | None
    dollars: float | None


class ModelReplied(Event, tag="model_replied"):
    """A model's reply, recorded before anyone reads it. ``prompt`` and ``reply``: blob digests. ``answered``: the
    model as the server names it. ``usage`` and ``dollars``: None where unknown."""

    call: str
    attempt: int
    answered: str
    prompt: str
    reply: str
    finish: Finish
    seconds: float
    usage: Usage | None
    dollars: float | None
    tier: str = ""


class AnswerMissing(Event, tag="answer_missing"):
    """A proposer had no answer: it failed, or its reply was of no use. It is asked again in a later round.

    ``subject``: as in ``CallSite``. ``call``: the name of the call whose reply was useless, "" where none came.
    """

    problem: str
    round: int
    purpose: Purpose
    subject: str
    proposer: str
    reason: str
    call: str = ""


class VariantWritten(Event, tag="variant_written"):
    """``source``: blob digest. ``parent``: the kernel it was derived from. ``note``: what distinguishes it
    (knobs of the playbook, a fix turn, an edit). ``data`` is the proposer's own (its recipe)."""

    variant: str
    idea: str
    problem: str
    round: int
    parent: str | None
    form: Form
    source: str
    proposer: str
    note: str = ""
    data: dict[str, Any] = {}


class VariantStage(Event, tag="variant_stage"):
    """``why``: for what reason a kernel that has a verdict is judged again."""

    variant: str
    stage: Stage
    why: str = ""


class VerdictGiven(Event, tag="verdict_given"):
    """``why``: for what reason it takes the place of an earlier one without the kernel having been queued again."""

    variant: str
    verdict: Verdict
    why: str = ""


class HeatFinished(Event, tag="heat_finished"):
    """Leaders of a problem timed side by side. ``standings`` are ordered, fastest first."""

    problem: str
    round: int
    standings: tuple[Standing, ...]


class SizesChecked(Event, tag="sizes_checked"):
    """The winner of a problem judged at other sizes. ``note``: why it was not, where ``results`` is empty."""

    problem: str
    variant: str
    results: tuple[AtSizes, ...] = ()
    note: str = ""


class RoundFinished(Event, tag="round_finished"):
    """Who is carried on and who is dropped; every survivor and every drop says why."""

    problem: str
    round: int
    survivors: tuple[Carried, ...]
    dropped: tuple[Carried, ...]


class ProblemFinished(Event, tag="problem_finished"):
    problem: str
    reason: str


class NodePruned(Event, tag="node_pruned"):
    """``node``: a problem, an idea or a variant; the branch below it goes with it."""

    node: str


class NodeRestored(Event, tag="node_restored"):
    node: str


class NodePinned(Event, tag="node_pinned"):
    node: str


class NodeUnpinned(Event, tag="node_unpinned"):
    node: str


class SearchPaused(Event, tag="search_paused"):
    pass


class SearchResumed(Event, tag="search_resumed"):
    pass


class BudgetChanged(Event, tag="budget_changed"):
    """New limits of the whole session; None leaves one as it is."""

    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class ShareChanged(Event, tag="share_changed"):
    """New limits of one model, by the name of its ``[[models]]`` table, or of each problem alone where ``model`` is "".
    None leaves one as it is."""

    model: str = ""
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class CommandHandled(Event, tag="command_handled"):
    """The engine carried out (or refused) command number ``command`` of the session file.

    ``unknown``: refused since it names something that the session does not have.
    """

    command: int
    ok: bool
    message: str
    node: str | None = None
    unknown: bool = False


class LogLine(Event, tag="log_line"):
    level: Literal["info", "warning", "error"]
    text: str


AnyEvent = (
    SessionCreated
    | EngineStarted
    | EngineStopped
    | DeviceMeasured
    | DeviceAwaited
    | DeviceFree
    | ProblemAdded
    | ProblemRefused
    | BaselineMeasured
    | RoundStarted
    | IdeaProposed
    | IdeaWaiting
    | ModelCallStarted
    | ModelCallFailed
    | ModelReplied
    | AnswerMissing
    | VariantWritten
    | VariantStage
    | VerdictGiven
    | HeatFinished
    | SizesChecked
    | RoundFinished
    | ProblemFinished
    | NodePruned
    | NodeRestored
    | NodePinned
    | NodeUnpinned
    | SearchPaused
    | SearchResumed
    | BudgetChanged
    | ShareChanged
    | CommandHandled
    | LogLine
)

_encoder = msgspec.json.Encoder()


class Recorded(Struct, frozen=True, gc=False):
    """An event as it stands in the session file. ``time``: Unix seconds."""

    seq: int
    time: float
    event: AnyEvent


def kind_of(event: Event) -> str:
    """The tag that the row's ``kind`` column holds."""
    return str(type(event).__struct_config__.tag)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


decode = msgspec.json.Decoder(AnyEvent).decode
"""From the JSON of a row, as bytes or text. Raises ``msgspec.ValidationError`` for a row that is no known event."""
