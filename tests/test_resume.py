"""``kernel-tui resume`` after ``kill -9``: no recorded event is lost, and only work in flight is repeated."""

from __future__ import annotations

import random
import time
from pathlib import Path

from benchmarks.kills import Chain, Kill, stages
from engine.session.records.events import EngineStarted, Recorded
from engine.session.state.session_state import fold
from engine.session.store import engine_liveness, summarize


def kill_while(doing: set[str], chain: Chain, not_before_round: int, delay_s: float) -> Kill:
    pid = chain.engine.pid

    def come(events: list[Recorded]) -> bool:
        rounds = [round_.number for problem in fold(events).problems.values() for round_ in problem.rounds]
        return max(rounds, default=-1) >= not_before_round and not doing.isdisjoint(stages(events, pid))

    assert chain.wait_for(come), "the search was over before it could be killed"
    time.sleep(delay_s)
    return chain.kill()


def test_a_search_killed_three_times_is_resumed_and_finished(tmp_path: Path) -> None:
    draw = random.Random(2)
    with Chain(tmp_path, rounds=1) as chain:
        assert kill_while({"building"}, chain, 0, draw.uniform(0.0, 0.15)).faults == ()
        living = engine_liveness(chain.paths)
        assert (living.running, living.exit_code, summarize(chain.paths).state) == (False, None, "died")
        chain.resume()
        assert kill_while({"checking", "timing"}, chain, 1, draw.uniform(0.0, 0.15)).faults == ()
        chain.resume()
        assert kill_while({"runoff"}, chain, 1, draw.uniform(0.0, 0.15)).faults == ()
        state, faults = chain.finish()
        assert faults == []
        events = chain.read()
    assert sum(isinstance(one.event, EngineStarted) for one in events) == 4
    assert state.engine is not None
    assert state.engine.stopped == "finished"
    (problem,) = state.problems.values()
    assert [(one.number, one.finished_at is not None) for one in problem.rounds] == [(0, True), (1, True)]
    assert all(variant.verdict is not None for variant in state.variants.values())
    assert any(variant.correct for variant in state.variants.values())
