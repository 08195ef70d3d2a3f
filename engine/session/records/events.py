"""All events that a session can record.

Events are small frozen structs with a ``kind`` tag, stored as JSON rows in the session file. Large texts (sources,
prompts, replies, logs) are blobs, and events refer to blobs by digest. A session's state follows from its events alone
(``engine.session.state.session_state``). The meaning of a kind never changes; a new meaning gets a new kind.

Node ids: ``softmax`` for a problem (its slug), ``softmax/r2`` for a round, ``i12`` for an idea, and ``v34`` for a
variant.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from engine.devices.fact import DeviceFact
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.counters import Bottleneck, KernelCounters
from engine.session.records.model_calls import CallSite, FailureKind, Finish, Purpose, Usage
from engine.session.records.other_sizes import AtSizes
from engine.session.records.verdict import Baseline, Stage, Standing, Verdict

StopReason = Literal["finished", "stopped", "budget", "waiting", "signal", "error"]
Startup = Literal["judge", "peaks", "problem", "done"]
TurnEnd = Literal["time", "near_sol", "no_gain", "done", "limit", "no_proposer", "refused", "pruned", "not_opened"]
LARGER_LIMIT = "to continue, resume with a larger limit"
"""End of the text in ``EngineStopped.message`` if a limit on dollars, tokens or calls ended the search."""
RESERVED = "the search does not start new kernels, because the time left is reserved for final measurements; now "
"""Beginning of each ``LogLine`` that announces a measurement in the reserved part of the time budget."""
RESERVED_EARLIER = "the time budget is nearly used up, so the search starts no new kernels; now "
"""``RESERVED`` in sessions that earlier versions wrote."""
BY_HAND = "hand"
"""Proposer name for ideas and kernels that a person wrote."""


class Event(Struct, frozen=True, tag_field="kind", kw_only=True, omit_defaults=True, gc=False):
    """Base class for all events. The garbage collector ignores events, because they contain no reference cycles."""


class SessionCreated(Event, tag="session_created"):
    """A session's first event. ``config`` is the digest of the frozen TOML text."""

    name: str
    version: str
    config: str
    seed: int


class EngineStarted(Event, tag="engine_started"):
    """An engine began or resumed the search. ``sandbox``: the isolation layers on this machine. ``before``: the time of
    the last heartbeat from an earlier engine that died; 0 if unknown.
    """

    pid: int
    host: str
    version: str
    resumed: bool
    devices: tuple[DeviceFact, ...]
    sandbox: str
    before: float = 0.0


class EngineStopped(Event, tag="engine_stopped"):
    """The engine shut down cleanly. An engine that dies leaves an ``engine_started`` event without this event."""

    reason: StopReason
    message: str


class StartupStep(Event, tag="startup_step"):
    """The engine began a step of its startup. Kernels of an open problem may run at the same time.

    ``step``: ``judge`` starts the judge, ``peaks`` also measures the device's peaks, and ``problem`` opens ``problem``.
    ``done``: all problems are open. ``number``, ``count``: the problem's position in the order of opening, from 1, and
    the number of problems to open.
    """

    step: Startup
    problem: str = ""
    number: int = 0
    count: int = 0


class DeviceMeasured(Event, tag="device_measured"):
    """The judge measured a device's peak bandwidth and peak arithmetic rate."""

    device: DeviceFact


class DeviceJoined(Event, tag="device_joined"):
    """A device on another host joined or rejoined the search."""

    device: DeviceFact


class DeviceLeft(Event, tag="device_left"):
    """A device on another host left the search. ``reason`` says why the device left, and which command to type. Other
    devices take over its work.
    """

    device: str
    reason: str


class DeviceAwaited(Event, tag="device_awaited"):
    """The search is waiting for a device that process ``pid`` occupies. ``command`` is that process's command line.

    ``held_since`` is in Unix seconds; ``seconds`` is the duration of the wait so far. If ``needed_bytes`` is not 0, the
    search is waiting for device memory: ``free_bytes`` are free, and process ``pid`` occupies most of the rest. Unknown
    values are 0, "" or None."""

    device: str
    pid: int
    command: str = ""
    held_since: float | None = None
    seconds: float = 0.0
    needed_bytes: int = 0
    free_bytes: int = 0


class DeviceFree(Event, tag="device_free"):
    """The wait for a device ended after ``seconds``."""

    device: str
    seconds: float


class ProblemAdded(Event, tag="problem_added"):
    """The search accepted a problem. ``header`` is the C header for the problem's kernels, or "" if their language
    needs no header. ``languages``: languages of the problem's kernels, ``language`` first; () means only ``language``.
    """

    problem: ProblemSpec
    language: Language = field(name="form")
    header: str
    languages: tuple[Language, ...] = ()


class ProblemRefused(Event, tag="problem_refused"):
    """The search rejected a problem, because its inspection failed or the judge cannot evaluate kernels for it."""

    problem: str
    path: str
    reason: str


class CannotWrite(Event, tag="cannot_write"):
    """No proposer in the config can write a kernel for the problem. The problem stays open for kernels that a person
    seeds.

    ``reason``: one sentence per proposer; "" if a proposer now supports the problem, for example after an update.
    ``remedies``: what a person can do, each with the command to type or the table to add to the config.
    """

    problem: str
    reason: str
    remedies: tuple[str, ...] = ()


class BaselineMeasured(Event, tag="baseline_measured"):
    """The judge timed the reference, in eager mode or compiled. ``sol_ms`` is the SOL in milliseconds.

    ``degenerate``: the trivial outputs that pass every check of the problem, as text; set only with the eager baseline.
    ``tightened``: why the tolerance is smaller than the configured value; used only in older sessions. ``seconds``:
    duration of the measurement; 0 in older sessions."""

    problem: str
    baseline: Baseline
    sol_ms: float | None = field(default=None, name="floor_ms")
    degenerate: str = ""
    tightened: str = ""
    seconds: float = 0.0


class Selected(Struct, frozen=True, omit_defaults=True):
    """A variant that a strategy selected as a parent or dropped, with the reason."""

    variant: str
    why: str


class RoundStarted(Event, tag="round_started"):
    """A round began. ``parents`` is empty in round 0, when proposers write first kernels from the reference alone."""

    problem: str
    round: int
    parents: tuple[Selected, ...]


class IdeaProposed(Event, tag="idea_proposed"):
    """A proposer or a person added an idea. ``parent``: the kernel that the idea changes, or None for a first kernel.

    ``data`` is private to the proposer."""

    idea: str
    problem: str
    round: int
    parent: str | None
    category: str
    text: str
    proposer: str
    data: dict[str, Any] = {}


class IdeaWaiting(Event, tag="idea_waiting"):
    """An idea is waiting for a person to write its kernel, because no proposer in this session can write the kernel."""

    idea: str
    reason: str


class ModelCallStarted(Event, tag="model_call_started"):
    """The engine is about to send one attempt of a call to a model.

    ``call``: the call's id (``c12``), shared by all attempts. ``model``: the name of the config's ``[[models]]`` table.
    ``prompt``: digest of the prompt. ``tokens`` and ``dollars``: maximum cost of the attempt, reserved until it ends;
    ``dollars`` is None if the price is unknown.
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
    """An attempt failed. ``wait_s``: seconds until the next attempt; None if the engine gave up.

    ``usage``: tokens that the provider billed despite the failure. ``usage`` is zero if the server rejected the call.
    It is None if the provider did not report a cost. An attempt without a reported cost is unconfirmed. ``dollars``:
    None if the usage or the price is unknown.
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
    """A model's reply, recorded before the engine reads it. ``prompt`` and ``reply`` are digests. ``answered``: the
    server's name for the model. ``usage`` and ``dollars``: None if unknown.
    """

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
    """A proposer did not return a usable answer. The engine repeats the request in a later round.

    ``subject``: as in ``CallSite``. ``call``: the call with the unusable reply, or "" if there was no reply.
    """

    problem: str
    round: int
    purpose: Purpose
    subject: str
    proposer: str
    reason: str
    call: str = ""


class VariantWritten(Event, tag="variant_written"):
    """A proposer or a person wrote a kernel. ``source``: digest. ``parent``: the kernel from which the new kernel
    derives.

    ``note``: what distinguishes the kernel, such as playbook settings, a repair or an edit. ``data`` is private to the
    proposer."""

    variant: str
    idea: str
    problem: str
    round: int
    parent: str | None
    language: Language = field(name="form")
    source: str
    proposer: str
    note: str = ""
    data: dict[str, Any] = {}


class SourceRepeated(Event, tag="source_repeated"):
    """A model's reply repeats the source of an earlier kernel for the problem. The judge does not evaluate this source
    again.

    ``same_as``: the earlier variant with this source. ``idea``: the idea that the reply implements. ``parent``: the
    kernel to repair or change. ``call``: the call that produced the reply. ``number``: the kernel's index within the
    idea.
    """

    problem: str
    idea: str
    round: int
    same_as: str
    proposer: str
    parent: str | None = None
    call: str = ""
    number: int | None = None


class VariantStage(Event, tag="variant_stage"):
    """A kernel entered a stage of its evaluation. ``why``: why the judge evaluates the kernel again; "" for the first
    time. ``device``: the device on another host; "" for this machine.
    """

    variant: str
    stage: Stage
    why: str = ""
    device: str = ""


class VerdictGiven(Event, tag="verdict_given"):
    """The judge gave a verdict. ``why``: the reason, if the verdict replaces an earlier one."""

    variant: str
    verdict: Verdict
    why: str = ""


class Profiled(Event, tag="profiled"):
    """``ncu`` read the hardware counters of a correct kernel. ``launches``: one call's launches. ``report``: the name
    of the report file from ``ncu`` in the session's directory. Nsight Compute can open this file.
    """

    variant: str
    launches: tuple[KernelCounters, ...]
    bottleneck: Bottleneck | None = None
    report: str = ""


class RunoffFinished(Event, tag="heat_finished"):
    """The judge timed a problem's leading kernels side by side. ``standings`` is sorted, fastest first. ``seconds``:
    duration of the runoff; 0 in older sessions.
    """

    problem: str
    round: int
    standings: tuple[Standing, ...]
    seconds: float = 0.0


class SizesChecked(Event, tag="sizes_checked"):
    """The judge evaluated a problem's best kernel at other sizes. ``note`` gives the reason if ``results`` is empty.
    ``seconds``: duration of the check; 0 in older sessions."""

    problem: str
    variant: str
    results: tuple[AtSizes, ...] = ()
    note: str = ""
    seconds: float = 0.0


class RoundFinished(Event, tag="round_finished"):
    """A round ended. ``selected`` lists the parents of the next round. Each entry includes the reason."""

    problem: str
    round: int
    selected: tuple[Selected, ...] = field(name="survivors")
    dropped: tuple[Selected, ...]


class ProblemFinished(Event, tag="problem_finished"):
    """The search of a problem ended."""

    problem: str
    reason: str


class TurnStarted(Event, tag="turn_started"):
    """The search started a turn: ``minutes`` of engine time for one problem.

    Only sessions with ``budget.minutes_per_problem`` have turns. A problem may have several turns. A new engine
    continues an open turn and repeats this event. The turn does not include the time from the new engine's start to the
    repeated event.
    """

    problem: str
    minutes: float


class TurnEnded(Event, tag="turn_ended"):
    """The search stopped working on a problem and evicted it. The search completed or stopped the problem's deferred
    measurements.

    ``reason``: ``time``: the turn's minutes are used up. ``near_sol``: the best kernel is close to the SOL.
    ``no_gain``: several rounds in a row did not produce a faster kernel. ``done``: no round is left. ``limit``: the
    search reached a spending limit. ``no_proposer``: no proposer can write a kernel. ``refused``: the search cannot
    open the problem. ``pruned``: a person pruned the problem. ``not_opened``: the judge was killed while it opened the
    problem.
    """

    problem: str
    reason: TurnEnd


class NodePruned(Event, tag="node_pruned"):
    """A person pruned a problem, an idea or a kernel, with everything below it."""

    node: str


class NodeRestored(Event, tag="node_restored"):
    """A person restored a pruned branch."""

    node: str


class NodePinned(Event, tag="node_pinned"):
    """A person pinned a branch."""

    node: str


class NodeUnpinned(Event, tag="node_unpinned"):
    """A person unpinned a branch."""

    node: str


class SearchPaused(Event, tag="search_paused"):
    """A person paused the search. The engine does not start new evaluations.

    ``kept``: the search was paused before its engine was interrupted, and the next engine keeps it paused.
    """

    kept: bool = False


class SearchResumed(Event, tag="search_resumed"):
    """A person ended a pause."""


class StopPlanned(Event, tag="stop_planned"):
    """A person asked the search to stop after the running rounds."""


class StopCanceled(Event, tag="stop_canceled"):
    """A person canceled a planned stop, so the search continues."""


class BudgetChanged(Event, tag="budget_changed"):
    """A person set new limits for the whole session. None leaves a limit unchanged."""

    minutes: float | None = None
    rounds: int | None = None
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class ShareChanged(Event, tag="share_changed"):
    """A person set new limits for one model, named by its ``[[models]]`` table, or for each problem if ``model`` is "".

    None leaves a limit unchanged."""

    model: str = ""
    dollars: float | None = None
    tokens: int | None = None
    calls: int | None = None


class CommandHandled(Event, tag="command_handled"):
    """The engine carried out or refused request number ``command`` in the session file.

    ``unknown``: the engine refused the request because the session does not contain a name in the request.
    """

    command: int
    ok: bool
    message: str
    node: str | None = None
    unknown: bool = False


class LogLine(Event, tag="log_line"):
    """A line in the session's log."""

    level: Literal["info", "warning", "error"]
    text: str


AnyEvent = (
    SessionCreated
    | EngineStarted
    | EngineStopped
    | StartupStep
    | DeviceMeasured
    | DeviceJoined
    | DeviceLeft
    | DeviceAwaited
    | DeviceFree
    | ProblemAdded
    | ProblemRefused
    | CannotWrite
    | BaselineMeasured
    | RoundStarted
    | IdeaProposed
    | IdeaWaiting
    | ModelCallStarted
    | ModelCallFailed
    | ModelReplied
    | AnswerMissing
    | VariantWritten
    | SourceRepeated
    | VariantStage
    | VerdictGiven
    | RunoffFinished
    | Profiled
    | SizesChecked
    | RoundFinished
    | ProblemFinished
    | TurnStarted
    | TurnEnded
    | NodePruned
    | NodeRestored
    | NodePinned
    | NodeUnpinned
    | SearchPaused
    | SearchResumed
    | StopPlanned
    | StopCanceled
    | BudgetChanged
    | ShareChanged
    | CommandHandled
    | LogLine
)

_encoder = msgspec.json.Encoder()


class Recorded(Struct, frozen=True, gc=False):
    """An event as stored in the session file. ``time`` is in Unix seconds."""

    seq: int
    time: float
    event: AnyEvent


def kind_of(event: Event) -> str:
    """Return the event's tag for the ``kind`` column."""
    return str(type(event).__struct_config__.tag)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


decode = msgspec.json.Decoder(AnyEvent).decode
"""Decode a row's JSON (bytes or text) to an event. Raises ``msgspec.ValidationError`` for an unknown event."""
