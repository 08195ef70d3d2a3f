"""Event handlers: one function for each kind of event. ``SessionState.apply`` calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.session.records import events as ev
from engine.session.records.model_calls import CallSite
from engine.session.records.problem_end import is_rounds_complete
from engine.session.records.skipped_compile import STOP_PLANNED, reason_in
from engine.session.records.speedup_text import with_times
from engine.session.state.comparable import comparable_speedup
from engine.session.state.lineage import out_of_order
from engine.session.state.nodes import EngineState, IdeaState, ProblemState, RoundState, TurnState, VariantState
from engine.session.state.ranking import (
    choose_best,
    choose_leader,
    compare,
    lead,
    note_lead,
    rank,
    rechoose,
    runoff_winner,
)
from engine.session.state.session_data import SessionData, round_of


def _session_created(state: SessionData, event: ev.SessionCreated, time: float) -> None:
    state.name, state.version, state.config, state.seed = event.name, event.version, event.config, event.seed
    state.created_at = time


def _engine_started(state: SessionData, event: ev.EngineStarted, time: float) -> None:
    # The earlier engine died after its last event or heartbeat. The newest events may be from the engine that starts.
    if state.engine is not None and state.engine.stopped is None:
        started_at = state.engine.started_at  # The earlier engine's clock also set ``before``.
        died_at = event.before if event.before > started_at else max(started_at, state.time)
        state.search_seconds += died_at - started_at
        _end_pause(state, died_at)
        _end_hold_up(state, died_at)
    state.waits.clear()
    state.gone.clear()
    state.spending.lost(state.time)
    state.engine = EngineState(event.pid, event.host, event.version, time, event.sandbox)
    state.starts, state.died, state.stop_planned = state.starts + 1, False, False
    if state.turn is not None and state.turn.stopped_s is None:
        state.turn = replace(state.turn, stopped_s=state.elapsed_s(time))
    if event.devices:  # The list is empty if the engine ended before it looked for devices.
        state.devices = {device.id: _with_peaks(device, state.devices.get(device.id)) for device in event.devices}
    for variant in state.in_flight():
        # ``is_left_over`` compares the time at which a kernel was queued with the end of its problem's turn.
        if variant.stage != "queued":
            variant.stage, variant.stage_since = "queued", time


def _with_peaks(device: DeviceFact, before: DeviceFact | None) -> DeviceFact:
    """Copy to ``device`` the peaks that an earlier engine measured on the same device."""
    if before is None or device.bandwidth_gbs is not None:
        return device
    known = replace(device, bandwidth_gbs=before.bandwidth_gbs, peak_gflops=before.peak_gflops)
    return known if (known.name, known.arch, known.cores) == (before.name, before.arch, before.cores) else device


def _end_pause(state: SessionData, time: float) -> None:
    """End a pause at ``time``. Paused time does not count toward the budget."""
    if state.paused_at is not None:
        state.search_seconds -= max(0.0, time - state.paused_at)
        state.paused_at = None


def _end_hold_up(state: SessionData, time: float) -> None:
    """End the wait for devices, because a device is free again or the search no longer needs a device."""
    if state.held_up_at is not None:
        state.search_seconds -= max(0.0, time - state.held_up_at)
        state.held_up_at = None


def _begin_hold_up(state: SessionData, since: float) -> None:
    """Stop the budget's clock at ``since`` if every device of the running search has left or is occupied."""
    running = state.engine is not None and state.engine.stopped is None and not state.paused
    none_left = state.gone.keys() | state.waits.keys() >= state.devices.keys()
    if running and state.held_up_at is None and state.devices and none_left:
        state.held_up_at = since


def _engine_stopped(state: SessionData, event: ev.EngineStopped, time: float) -> None:
    if state.engine is not None:
        state.engine.stopped, state.engine.message = event.reason, event.message
        state.search_seconds += time - state.engine.started_at
        _end_pause(state, time)
        _end_hold_up(state, time)
    if event.reason not in ("signal", "error"):  # The search itself ended, so the next engine starts unpaused.
        state.paused = state.pause_kept = False
    state.waits.clear()


def _startup_step(state: SessionData, event: ev.StartupStep, time: float) -> None:
    if state.engine is not None:
        state.engine.startup = event


def _device_measured(state: SessionData, event: ev.DeviceMeasured, time: float) -> None:
    state.devices[event.device.id] = event.device


def _device_joined(state: SessionData, event: ev.DeviceJoined, time: float) -> None:
    state.devices[event.device.id] = _with_peaks(event.device, state.devices.get(event.device.id))
    state.gone.pop(event.device.id, None)
    _end_hold_up(state, time)


def _device_left(state: SessionData, event: ev.DeviceLeft, time: float) -> None:
    state.gone[event.device] = event.reason
    state.waits.pop(event.device, None)
    _begin_hold_up(state, time)


def _device_awaited(state: SessionData, event: ev.DeviceAwaited, time: float) -> None:
    state.waits[event.device] = event
    _begin_hold_up(state, time - event.seconds)


def _device_free(state: SessionData, event: ev.DeviceFree, time: float) -> None:
    state.waits.pop(event.device, None)
    _end_hold_up(state, time)


def _problem_added(state: SessionData, event: ev.ProblemAdded, time: float) -> None:
    state.problems[event.problem.id] = ProblemState(
        event.problem, event.language, event.header, time, languages=event.languages or (event.language,)
    )


def _problem_refused(state: SessionData, event: ev.ProblemRefused, time: float) -> None:
    state.refused[event.problem] = event


def _cannot_write(state: SessionData, event: ev.CannotWrite, time: float) -> None:
    if (problem := state.problems.get(event.problem)) is not None:
        problem.cannot_write, problem.remedies = event.reason or None, event.remedies


def _baseline_measured(state: SessionData, event: ev.BaselineMeasured, time: float) -> None:
    _continue_turn(state, event.problem, time)
    if (problem := state.problems.get(event.problem)) is not None:
        problem.baselines[event.baseline.which] = event.baseline
        if event.sol_ms is not None:
            problem.sol_ms = event.sol_ms
        problem.degenerate = event.degenerate or problem.degenerate
        problem.tightened = event.tightened or problem.tightened


def _round_started(state: SessionData, event: ev.RoundStarted, time: float) -> None:
    _continue_turn(state, event.problem, time)
    if (problem := state.problems.get(event.problem)) is not None:
        problem.finished = None
        problem.rounds.append(RoundState(event.problem, event.round, event.parents, time))
        for one in event.parents:  # The choice may be newer than the end of the round before.
            if (variant := state.variants.get(one.variant)) is not None:
                variant.selected_because, variant.dropped = with_times(one.why), None


def _idea_proposed(state: SessionData, event: ev.IdeaProposed, time: float) -> None:
    name, parent = event.idea, event.parent
    if name in state.ideas or name in state.awaited or (parent is not None and parent not in state.variants):
        known = state.ideas.get(name)
        out_of_order(state, name, (parent,), (known.parent,) if known is not None else None)
    state.ideas[event.idea] = IdeaState(
        event.idea,
        event.problem,
        event.round,
        event.parent,
        event.category,
        event.text,
        event.proposer,
        event.data,
        time,
    )
    if (round_ := round_of(state, event.problem, event.round)) is not None:
        round_.ideas.append(event.idea)
    state.below.setdefault(parent or event.problem, []).append(name)


def _idea_waiting(state: SessionData, event: ev.IdeaWaiting, time: float) -> None:
    if (idea := state.ideas.get(event.idea)) is not None:
        idea.waiting = event.reason


def _call_started(state: SessionData, event: ev.ModelCallStarted, time: float) -> None:
    _continue_turn(state, event.site.problem, time)
    state.spending.started(event, _idea_of(state, event.site), time)


def _call_failed(state: SessionData, event: ev.ModelCallFailed, time: float) -> None:
    state.spending.failed(event, time)


def _replied(state: SessionData, event: ev.ModelReplied, time: float) -> None:
    state.spending.replied(event, time)


def _answer_missing(state: SessionData, event: ev.AnswerMissing, time: float) -> None:
    if event.call:
        state.useless.add(event.call)
    if (problem := state.problems.get(event.problem)) is not None:
        rounds = problem.missing.setdefault((event.purpose, event.subject), {})
        rounds.setdefault(event.round, []).append(event)


def _idea_of(state: SessionData, site: CallSite) -> str | None:
    """Return the idea to which a call's cost belongs. Return None for a call that requests ideas."""
    if site.purpose == "fix":
        variant = state.variants.get(site.subject)
        return variant.idea if variant is not None else None
    return site.subject if site.purpose == "kernel" else None


def _variant_written(state: SessionData, event: ev.VariantWritten, time: float) -> None:
    name, idea_name, parent = event.variant, event.idea, event.parent
    variants, idea = state.variants, state.ideas.get(idea_name)
    if name in variants or name in state.awaited or idea is None or (parent is not None and parent not in variants):
        known = variants.get(name)
        out_of_order(state, name, (idea_name, parent), (known.idea, known.parent) if known is not None else None)
    variants[name] = VariantState(
        name,
        idea_name,
        event.problem,
        event.round,
        parent,
        event.language,
        event.source,
        event.proposer,
        event.note,
        event.data,
        time,
        stage_since=time,
    )
    state.flight[name] = None
    state.below.setdefault(idea_name, []).append(name)
    if parent is not None:
        state.derived.setdefault(parent, []).append(name)
    if (problem := state.problems.get(event.problem)) is not None:
        problem.variants.append(name)
    if (round_ := round_of(state, event.problem, event.round)) is not None:
        round_.variants.append(name)
    if idea is not None:
        idea.variants.append(name)
        idea.waiting = None


def _source_repeated(state: SessionData, event: ev.SourceRepeated, time: float) -> None:
    if (idea := state.ideas.get(event.idea)) is not None:
        idea.repeats.append(event)


def _variant_stage(state: SessionData, event: ev.VariantStage, time: float) -> None:
    if (variant := state.variants.get(event.variant)) is not None:
        variant.stage, variant.stage_since, variant.device = event.stage, time, event.device
        state.flight[event.variant] = None
        if event.stage != "queued":  # An engine also queues kernels before it opens their problem.
            _continue_turn(state, variant.problem, time)


def _verdict_given(state: SessionData, event: ev.VerdictGiven, time: float) -> None:
    variant = state.variants.get(event.variant)
    if variant is None:
        return
    if event.verdict.status != "cancelled":
        _continue_turn(state, variant.problem, time)
    state.verdicts += (event.verdict.status != "cancelled") - variant.was_judged
    state.flight.pop(event.variant, None)
    rank(state, variant, event.verdict)
    if variant.was_judged and variant.verdict is not None and variant.verdict != event.verdict:
        variant.earlier = (*variant.earlier, variant.verdict)
    variant.verdict, variant.stage = event.verdict, None
    variant.judged_at, variant.judged_seq = time, state.seq
    variant.judged += 1
    if (
        variant.judged > 1 or variant.speedup is not None
    ):  # A kernel that failed its first evaluation never led a round.
        choose_best(state, variant.problem, challenger=variant, at=time)
        choose_leader(state, variant)


def _profiled(state: SessionData, event: ev.Profiled, time: float) -> None:
    if event.variant in state.variants:
        state.variants[event.variant].profile = event


def _runoff_finished(state: SessionData, event: ev.RunoffFinished, time: float) -> None:
    if (problem := state.problems.get(event.problem)) is None:
        return
    for standing in event.standings:
        # Raise an exception for an unknown variant, because every reader looks the variant up.
        state.variants[standing.variant]
    problem.standings, problem.runoff_at, problem.runoff_seq = event.standings, time, state.seq
    if (round_ := round_of(state, event.problem, event.round)) is not None:
        round_.standings, round_.runoff_seq = event.standings, state.seq
        lead(state, round_)
    met = {standing.variant for standing in event.standings if standing.decides}
    problem.former = next((one for one in (problem.best, problem.former) if one is not None and one not in met), None)
    if (winner := runoff_winner(state, problem)) is not None:
        before, problem.best = state.variants.get(problem.best or ""), winner.id
        note_lead(state, problem, before, time)
    compare(state, problem)
    if round_ is not None and round_.finished_at is not None:  # The round's last runoff may follow its end.
        _close(state, problem, round_)


def _sizes_checked(state: SessionData, event: ev.SizesChecked, time: float) -> None:
    if (variant := state.variants.get(event.variant)) is not None:
        variant.at_sizes = event


def _round_finished(state: SessionData, event: ev.RoundFinished, time: float) -> None:
    selected, dropped = (
        tuple(replace(one, why=with_times(one.why)) for one in chosen) for chosen in (event.selected, event.dropped)
    )
    if (round_ := round_of(state, event.problem, event.round)) is not None:
        round_.finished_at, round_.selected, round_.dropped = time, selected, dropped
        _close(state, state.problems[event.problem], round_)
    for one in selected:
        if (variant := state.variants.get(one.variant)) is not None:
            variant.selected_because, variant.dropped = one.why, None
    for one in dropped:
        if (variant := state.variants.get(one.variant)) is not None:
            variant.selected_because, variant.dropped = None, one.why


def _close(state: SessionData, problem: ProblemState, round_: RoundState) -> None:
    """Record a finished round's result."""
    round_.reached, round_.pruned = problem.best, _pruned_in(state, problem.id)
    leader = state.leader_of_round(problem.id, round_.number)
    round_.speedup = comparable_speedup(state, leader) if leader is not None else None


def _problem_finished(state: SessionData, event: ev.ProblemFinished, time: float) -> None:
    if (problem := state.problems.get(event.problem)) is not None:
        problem.finished = event.reason


def _turn_started(state: SessionData, event: ev.TurnStarted, time: float) -> None:
    state.takes_turns = True
    if state.turn is not None and state.turn.problem == event.problem:
        _continue_turn(state, event.problem, time)
        return
    if (problem := state.problems.get(event.problem)) is not None:
        problem.turns, problem.turn_end = problem.turns + 1, None
        round_ = problem.rounds[-1].number if problem.rounds else 0
        state.turn = TurnState(event.problem, event.minutes, state.elapsed_s(time), round_)


def _continue_turn(state: SessionData, problem: str, time: float) -> None:
    """Continue the clock of the problem's turn after a new engine starts. An event that shows work continues the clock,
    because older engines did not record ``TurnStarted`` for an open turn.
    """
    if (turn := state.turn) is not None and turn.problem == problem and turn.stopped_s is not None:
        began_s = turn.began_s + state.elapsed_s(time) - turn.stopped_s
        state.turn = replace(turn, began_s=began_s, stopped_s=None, continued=True)


def _turn_ended(state: SessionData, event: ev.TurnEnded, time: float) -> None:
    if (problem := state.problems.get(event.problem)) is not None:
        problem.turn_seconds = state.problem_seconds(event.problem, time)
        problem.turn_end, problem.turn_ended_at = event.reason, time
    state.turn = None


def _pruned_in(state: SessionData, problem: str) -> tuple[str, ...]:
    """Return the pruned nodes of a problem, without the problem itself."""
    return tuple(sorted(node for node in state.pruned if node != problem and problem in state.lineage(node)))


def _node_pruned(state: SessionData, event: ev.NodePruned, time: float) -> None:
    state.pruned.add(event.node)
    rechoose(state, event.node, time)


def _node_restored(state: SessionData, event: ev.NodeRestored, time: float) -> None:
    state.pruned.discard(event.node)
    rechoose(state, event.node, time)


def _node_pinned(state: SessionData, event: ev.NodePinned, time: float) -> None:
    state.pinned.add(event.node)


def _node_unpinned(state: SessionData, event: ev.NodeUnpinned, time: float) -> None:
    state.pinned.discard(event.node)


def _search_paused(state: SessionData, event: ev.SearchPaused, time: float) -> None:
    _end_hold_up(state, time)
    state.paused, state.pause_kept = True, event.kept
    state.paused_at = time


def _search_resumed(state: SessionData, event: ev.SearchResumed, time: float) -> None:
    state.paused = state.pause_kept = False
    _end_pause(state, time)
    _begin_hold_up(state, time)


def _stop_planned(state: SessionData, event: ev.StopPlanned, time: float) -> None:
    state.stop_planned = True


def _stop_canceled(state: SessionData, event: ev.StopCanceled, time: float) -> None:
    state.stop_planned = False
    for problem in state.problems.values():
        if problem.compile_skipped == STOP_PLANNED:
            problem.compile_skipped = ""


def _budget_changed(state: SessionData, event: ev.BudgetChanged, time: float) -> None:
    if event.minutes is not None:
        state.minutes = event.minutes
        for problem in state.problems.values():
            problem.compile_skipped = ""
    if event.rounds is not None:
        state.rounds = event.rounds
        for problem in state.problems.values():
            if problem.rounds and is_rounds_complete(problem.finished) and problem.rounds[-1].number < event.rounds:
                problem.finished = None
    state.dollars = event.dollars if event.dollars is not None else state.dollars
    state.tokens = event.tokens if event.tokens is not None else state.tokens
    state.calls = event.calls if event.calls is not None else state.calls


def _share_changed(state: SessionData, event: ev.ShareChanged, time: float) -> None:
    before = state.shares.get(event.model, event)
    state.shares[event.model] = ev.ShareChanged(
        model=event.model,
        dollars=event.dollars if event.dollars is not None else before.dollars,
        tokens=event.tokens if event.tokens is not None else before.tokens,
        calls=event.calls if event.calls is not None else before.calls,
    )


def _command_handled(state: SessionData, event: ev.CommandHandled, time: float) -> None:
    state.handled[event.command] = event


def _log_line(state: SessionData, event: ev.LogLine, time: float) -> None:
    state.log.append((time, event))
    if (found := reason_in(event.text)) is not None and (problem := state.problems.get(found[0])) is not None:
        problem.compile_skipped = found[1]


HANDLERS: dict[type, Callable[[SessionData, Any, float], None]] = {
    ev.SessionCreated: _session_created,
    ev.EngineStarted: _engine_started,
    ev.EngineStopped: _engine_stopped,
    ev.StartupStep: _startup_step,
    ev.DeviceMeasured: _device_measured,
    ev.DeviceJoined: _device_joined,
    ev.DeviceLeft: _device_left,
    ev.DeviceAwaited: _device_awaited,
    ev.DeviceFree: _device_free,
    ev.ProblemAdded: _problem_added,
    ev.ProblemRefused: _problem_refused,
    ev.CannotWrite: _cannot_write,
    ev.BaselineMeasured: _baseline_measured,
    ev.RoundStarted: _round_started,
    ev.IdeaProposed: _idea_proposed,
    ev.IdeaWaiting: _idea_waiting,
    ev.ModelCallStarted: _call_started,
    ev.ModelCallFailed: _call_failed,
    ev.ModelReplied: _replied,
    ev.AnswerMissing: _answer_missing,
    ev.VariantWritten: _variant_written,
    ev.SourceRepeated: _source_repeated,
    ev.VariantStage: _variant_stage,
    ev.VerdictGiven: _verdict_given,
    ev.RunoffFinished: _runoff_finished,
    ev.Profiled: _profiled,
    ev.SizesChecked: _sizes_checked,
    ev.RoundFinished: _round_finished,
    ev.ProblemFinished: _problem_finished,
    ev.TurnStarted: _turn_started,
    ev.TurnEnded: _turn_ended,
    ev.NodePruned: _node_pruned,
    ev.NodeRestored: _node_restored,
    ev.NodePinned: _node_pinned,
    ev.NodeUnpinned: _node_unpinned,
    ev.SearchPaused: _search_paused,
    ev.SearchResumed: _search_resumed,
    ev.StopPlanned: _stop_planned,
    ev.StopCanceled: _stop_canceled,
    ev.BudgetChanged: _budget_changed,
    ev.ShareChanged: _share_changed,
    ev.CommandHandled: _command_handled,
    ev.LogLine: _log_line,
}
