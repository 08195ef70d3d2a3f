"""A kernel that was right when it was judged and fails in the heat loses its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.events import AnyEvent, HeatFinished, LogLine, VerdictGiven
from engine.exit_codes import ExitCode
from engine.proposers.mailbox import Mailbox
from engine.session import SessionPaths, SessionReader, engine_liveness
from engine.state import SessionState, fold
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.engine.proposers.test_manual import CONFIG

LATER_S = (12, 120)
"""When the kernel turns; the second for a machine on which the first was over before it was judged."""


class Search:
    """A search under way whose model is this test."""

    def __init__(self, kernel_tui: KernelTui, directory: Path) -> None:
        (directory / "softmax.py").write_text(canned.PROBLEM)
        config = CONFIG.replace("ideas = 2", "ideas = 1").replace("variants = 2", "variants = 4")
        config = config.replace("fixes = 1", "fixes = 0").replace("max_pairs = 8", "max_pairs = 40")
        (directory / "config.toml").write_text(config)
        started = kernel_tui("run", "config.toml", "--detach")
        assert started.returncode == ExitCode.OK, started.stderr
        self.paths = SessionPaths.at(directory / "sessions" / "demo")
        self.mailbox = Mailbox(self.paths.directory)

    def events(self) -> list[AnyEvent]:
        with SessionReader(self.paths) as reader:
            return [one.event for one in reader.read()]

    def until(self, holds: Callable[[SessionState], bool], *, ended: bool = False) -> SessionState:
        """The first state in which ``holds``. ``ended``: the engine may come to its end before."""
        deadline = time.monotonic() + canned.PATIENCE_S
        while True:
            with SessionReader(self.paths) as reader:
                state = fold(reader.read())
            if holds(state):
                return state
            assert time.monotonic() < deadline and (ended or engine_liveness(self.paths).running)
            time.sleep(0.1)

    def answer(self, call: str, reply: str) -> None:
        """Answer the prompt when it is there."""
        self.until(lambda _: call in self.mailbox.waiting())
        self.mailbox.deliver(call, reply)

    def judge_one_that_turns(self) -> list[str]:
        """Four kernels are asked for; one that fails by now, two that stay right, and nothing yet.

        The names of their calls.
        """
        self.answer("softmax.r0.ideas.start.0", canned.ideas(*canned.IDEAS[:1]))
        for number, later_s in enumerate(LATER_S):
            turns, fails_at = f"softmax.r0.kernel.i1.{number}", time.time() + later_s
            turned = canned.good(f"turns {number}").replace(
                "{", f"{{\n    if (time(nullptr) > {fails_at:.0f}) abort();", 1
            )
            self.answer(turns, canned.block("#include <cstdlib>\n#include <ctime>\n" + turned))
            if self.until(lambda state, given=number: state.verdicts > given).leaders("softmax"):
                break
        time.sleep(max(0.0, fails_at + 1.0 - time.time()))
        one, other, *rest = self.mailbox.unanswered()
        self.answer(one, canned.block(canned.good("stays")))
        # As fast as the other, or they would not meet in a heat, but other code, or it would not be timed.
        self.answer(other, canned.block(canned.good("stays too") + '\nextern "C" int seven() { return 7; }\n'))
        return [turns, one, other, *rest]

    def check(self, state: SessionState, turns: str, one: str, other: str, status: str) -> None:
        """The one that turned is not correct any more, and the log says why; the others ran in a heat."""
        by_call = {str(variant.data["call"]): variant for variant in state.variants.values()}
        assert [by_call[call].correct for call in (turns, one, other)] == [False, True, True]
        verdict = by_call[turns].verdict
        assert verdict is not None and verdict.status == status
        said = [event.text for event in self.events() if isinstance(event, LogLine)]
        found = f"{by_call[turns].id}, which was right when it was judged, comes to an end"
        assert any(found in text for text in said), said
        (heat,) = [event for event in self.events() if isinstance(event, HeatFinished)]
        assert {standing.variant for standing in heat.standings} == {by_call[one].id, by_call[other].id}


def test_who_fails_in_the_heat_is_judged_again(kernel_tui: KernelTui, tmp_path: Path) -> None:
    search = Search(kernel_tui, tmp_path)
    turns, one, other, *rest = search.judge_one_that_turns()
    for call in rest:
        search.answer(call, "I would rather not.")
    state = search.until(lambda state: state.problems["softmax"].rounds[0].finished_at is not None)
    search.check(state, turns, one, other, "crashed")


def test_who_fails_in_the_last_heat_loses_its_verdict(kernel_tui: KernelTui, tmp_path: Path) -> None:
    """The heat of a round that the budget ends, while one of its kernels is still to be written."""
    search = Search(kernel_tui, tmp_path)
    turns, one, other, *_ = search.judge_one_that_turns()
    search.until(lambda state: state.verdicts >= 3)
    assert kernel_tui("budget", "demo", "--minutes", "0.1").returncode == ExitCode.OK
    state = search.until(lambda state: state.engine is not None and state.engine.stopped is not None, ended=True)
    assert state.engine is not None and state.engine.stopped == "budget"
    assert state.problems["softmax"].rounds[0].finished_at is None
    search.check(state, turns, one, other, "error")


def test_a_winner_whose_factor_is_hardly_known_is_judged_once_more(kernel_tui: KernelTui, tmp_path: Path) -> None:
    search = Search(kernel_tui, tmp_path)
    search.answer("softmax.r0.ideas.start.0", canned.ideas(*canned.IDEAS[:1]))
    unsteady = canned.good("unsteady").replace(
        "{", "{\n    for (volatile long n = rand() % 8 * 1000000; n > 0; n = n - 1) {}", 1
    )
    search.answer("softmax.r0.kernel.i1.0", canned.block("#include <stdlib.h>\n" + unsteady))
    search.until(lambda state: bool(state.leaders("softmax")))
    assert kernel_tui("budget", "demo", "--minutes", "0.1").returncode == ExitCode.OK
    search.until(lambda state: state.engine is not None and state.engine.stopped is not None, ended=True)
    (said,) = [event.text for event in search.events() if isinstance(event, LogLine) and "once more" in event.text]
    given = [event for event in search.events() if isinstance(event, VerdictGiven)]
    assert [bool(one.why) for one in given] == ([False] if "no better" in said else [False, True])
    assert said.startswith("softmax: v1, the best at ") and said.endswith("now")
