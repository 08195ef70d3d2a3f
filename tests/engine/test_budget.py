"""The remaining budget of a search."""

from __future__ import annotations

from msgspec import structs

from engine.devices.fact import DeviceFact
from engine.session.budget import Budget, budget_of, elapsed_s
from engine.session.records.events import (
    AnyEvent,
    BudgetChanged,
    DeviceAwaited,
    DeviceFree,
    DeviceJoined,
    DeviceLeft,
    EngineStarted,
    EngineStopped,
    LogLine,
    Recorded,
    SearchPaused,
    SearchResumed,
)
from engine.session.state.session_state import SessionState, fold


def session(*events: tuple[float, AnyEvent]) -> SessionState:
    return fold(Recorded(seq, time, event) for seq, (time, event) in enumerate(events, start=1))


STARTED = EngineStarted(pid=1, host="here", version="0", resumed=False, devices=(), sandbox="")
STOPPED = EngineStopped(reason="stopped", message="")


def test_minutes_count_while_an_engine_lives() -> None:
    assert elapsed_s(session((100.0, STARTED)), now=130.0) == 30.0


def test_time_between_two_lives_does_not_count() -> None:
    state = session((100.0, STARTED), (120.0, STOPPED), (1000.0, STARTED))
    assert elapsed_s(state, now=1005.0) == 25.0


def test_an_engine_that_died_counts_until_its_last_event() -> None:
    state = session((100.0, STARTED), (140.0, LogLine(level="info", text="last words")), (1000.0, STARTED))
    assert elapsed_s(state, now=1000.0) == 40.0


def test_an_engine_that_died_counts_until_its_last_heartbeat() -> None:
    again = structs.replace(STARTED, before=190.0)
    died = ((100.0, STARTED), (140.0, LogLine(level="info", text="last words")))
    assert elapsed_s(session(*died, (1000.0, again)), now=1000.0) == 90.0
    assert elapsed_s(session(*died, (10.0, again)), now=15.0) == 95.0, "the clock was set back"
    assert elapsed_s(session(*died), session(*died).last_moment(190.0)) == 90.0
    older = structs.replace(STARTED, before=50.0)
    assert elapsed_s(session(*died, (1000.0, older)), now=1000.0) == 40.0, "a heartbeat of an earlier engine"
    stopped = (*died, (150.0, STOPPED))
    assert elapsed_s(session(*stopped, (1000.0, again)), now=1000.0) == 50.0, "it said when it ended"


def test_what_an_engine_records_before_its_start_is_not_the_time_of_the_engine_that_died() -> None:
    state = session((100.0, STARTED))
    state.heard_at = 190.0
    state.apply(Recorded(2, 1000.0, LogLine(level="warning", text="tracking could not start")))
    state.apply(Recorded(3, 1010.0, structs.replace(STARTED, before=state.died_at)))
    assert elapsed_s(state, now=1015.0) == 95.0


def test_a_stopped_engine_counts_no_further() -> None:
    assert elapsed_s(session((100.0, STARTED), (120.0, STOPPED)), now=5000.0) == 20.0


def test_a_pause_does_not_count_however_it_ends() -> None:
    paused = ((100.0, STARTED), (110.0, SearchPaused()))
    assert elapsed_s(session(*paused), now=500.0) == 10.0
    assert elapsed_s(session(*paused, (200.0, SearchResumed())), now=205.0) == 15.0
    assert elapsed_s(session(*paused, (300.0, STOPPED)), now=900.0) == 10.0
    died = (*paused, (150.0, LogLine(level="info", text="last words")), (1000.0, STARTED), (1001.0, SearchResumed()))
    assert elapsed_s(session(*died), now=1005.0) == 15.0


def test_waits_for_devices_do_not_count_once_other_processes_hold_all_of_them() -> None:
    one, two = (DeviceFact(id=name, kind="cuda", name="GPU", arch="sm_90", memory_bytes=1, cores=1) for name in "ab")
    started = EngineStarted(pid=1, host="", version="0", resumed=False, devices=(one, two), sandbox="")
    some = ((100.0, started), (110.0, DeviceAwaited(device="a", pid=7, seconds=1.0)))
    assert elapsed_s(session(*some), now=150.0) == 50.0, "the other one works"
    held_up = (*some, (121.0, DeviceAwaited(device="b", pid=8, seconds=1.0)))
    assert elapsed_s(session(*held_up), now=150.0) == 20.0
    free = (130.0, DeviceFree(device="a", seconds=21.0))
    assert elapsed_s(session(*held_up, free), now=150.0) == 40.0
    assert elapsed_s(session(*held_up, (130.0, STOPPED), (500.0, started)), now=505.0) == 25.0
    assert elapsed_s(session(*held_up, (130.0, SearchPaused()), (140.0, SearchResumed())), now=150.0) == 20.0
    died = (*held_up, (130.0, LogLine(level="info", text="last words")), (1000.0, started))
    assert elapsed_s(session(*died), now=1005.0) == 25.0


def test_time_without_any_device_does_not_count_whether_each_left_or_is_occupied() -> None:
    one, two = (DeviceFact(id=name, kind="cuda", name="GPU", arch="sm_90", memory_bytes=1, cores=1) for name in "ab")
    started = (100.0, EngineStarted(pid=1, host="", version="0", resumed=False, devices=(one, two), sandbox=""))
    left, occupied = DeviceLeft(device="a", reason="cut"), DeviceAwaited(device="b", pid=8, seconds=0.0)
    for first, second in ((left, occupied), (occupied, left)):
        assert elapsed_s(session(started, (110.0, first), (120.0, second)), now=150.0) == 20.0
    paused = ((110.0, SearchPaused()), (115.0, left), (118.0, occupied), (120.0, SearchResumed()))
    assert elapsed_s(session(started, *paused), now=150.0) == 10.0
    assert elapsed_s(session(started, *paused, (130.0, DeviceJoined(device=one))), now=150.0) == 30.0


def test_a_person_overrules_the_config() -> None:
    state = session((1.0, BudgetChanged(minutes=2.0)))
    assert budget_of(state, minutes=5.0, rounds=4) == Budget(minutes=2.0, rounds=4)


def test_without_minutes_there_is_always_time() -> None:
    assert Budget(minutes=None, rounds=4).left_s(1e9, reserve_s=1e9) == float("inf")


def test_a_reserve_is_kept_back_but_never_most_of_the_budget() -> None:
    budget = Budget(minutes=2.0, rounds=4)
    assert budget.left_s(100.0) == 20.0
    assert budget.left_s(100.0, reserve_s=15.0) == 5.0
    assert budget.left_s(0.0, reserve_s=1e6) == 72.0
    assert Budget(minutes=6.0, rounds=4).left_s(0.0, reserve_s=1e6) == 240.0
    assert Budget(minutes=60.0, rounds=4).left_s(0.0, reserve_s=1e6) == 2700.0
