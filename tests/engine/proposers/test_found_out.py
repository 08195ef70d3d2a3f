"""A kernel that was judged correct but fails in the runoff loses its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.exit_codes import ExitCode
from engine.proposers.mailbox import Mailbox
from engine.session.records.events import AnyEvent, LogLine, RunoffFinished, VerdictGiven
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader, engine_liveness
from tests.commandline import KernelTui
from tests.engine.proposers import canned
from tests.engine.proposers.test_manual import CONFIG
from tests.patience import PATIENCE_S


class Search:
    """A running search whose prompts the test answers."""

    def __init__(
        self, kernel_tui: KernelTui, directory: Path, problem: str = canned.SLOW_PROBLEM, pairs: int = 8
    ) -> None:
        (directory / "softmax.py").write_text(problem)
        config = CONFIG.replace("ideas = 2", "ideas = 1").replace("variants = 2", "variants = 4")
        config = config.replace("fixes = 1", "fixes = 0").replace("max_pairs = 8", f"max_pairs = {pairs}")
        (directory / "config.toml").write_text(config)
        self.turned = directory / "turned"
        """Once this file exists, the kernel of ``judge_one_that_turns`` aborts."""
        started = kernel_tui("run", "config.toml", "--detach")
        assert started.returncode == ExitCode.OK, started.stderr
        self.paths = SessionPaths.at(directory / "sessions" / "demo")
        self.mailbox = Mailbox(self.paths.directory)

    def events(self) -> list[AnyEvent]:
        with SessionReader(self.paths) as reader:
            return [one.event for one in reader.read()]

    def until(self, holds: Callable[[SessionState], bool], *, ended: bool = False) -> SessionState:
        """Return the first state in which ``holds`` is true. With ``ended``, the engine may end before that."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with SessionReader(self.paths) as reader:
                state = fold(reader.read())
            if holds(state):
                return state
            assert time.monotonic() < deadline and (ended or engine_liveness(self.paths).running)
            time.sleep(0.1)

    def answer(self, call: str, reply: str) -> None:
        """Answer the prompt once it appears."""
        self.until(lambda _: call in self.mailbox.waiting())
        self.mailbox.deliver(call, reply)

    def judge_one_that_turns(self) -> list[str]:
        """Request four kernels: one that fails once it is judged, two correct ones, and no reply for the last.

        Returns the names of their calls.
        """
        self.answer("softmax.r0.ideas.start.0", canned.ideas(*canned.IDEAS[:1]))
        self.until(lambda _: len(self.mailbox.waiting()) >= 4)
        turns, one, other, last = self.mailbox.unanswered()
        aborts = f'if (access("{self.turned}", F_OK) == 0) abort();'
        turning = canned.asleep(canned.good("turns")).replace("{", "{\n    " + aborts, 1)
        self.answer(turns, canned.block("#include <stdlib.h>\n" + turning))
        self.until(lambda state: bool(state.leaders("softmax")))
        self.turned.touch()
        self.answer(one, canned.block(canned.asleep(canned.good("stays"))))
        # Its code differs, so that it is timed.
        self.answer(other, canned.block(canned.asleep(canned.divides("stays too"))))
        return [turns, one, other, last]

    def check(self, state: SessionState, turns: str, one: str, other: str, status: str) -> None:
        """Check that the kernel is no longer correct, that the log says why, and that the others ran in a runoff."""
        by_call = {str(variant.data["call"]): variant for variant in state.variants.values()}
        assert [by_call[call].correct for call in (turns, one, other)] == [False, True, True]
        verdict = by_call[turns].verdict
        assert verdict is not None and verdict.status == status
        said = [event.text for event in self.events() if isinstance(event, LogLine)]
        found = f"{by_call[turns].id} passed its checks but its process ended in the runoff: "
        assert any(found in text for text in said), said
        (runoff,) = [event for event in self.events() if isinstance(event, RunoffFinished)]
        assert {standing.variant for standing in runoff.standings} == {by_call[one].id, by_call[other].id}


def test_a_kernel_which_fails_in_the_runoff_is_judged_again(kernel_tui: KernelTui, tmp_path: Path) -> None:
    search = Search(kernel_tui, tmp_path)
    turns, one, other, *rest = search.judge_one_that_turns()
    for call in rest:
        search.answer(call, "I would rather not.")
    state = search.until(lambda state: state.problems["softmax"].rounds[0].finished_at is not None)
    search.check(state, turns, one, other, "crashed")


def test_a_kernel_which_fails_in_the_last_runoff_loses_its_verdict(kernel_tui: KernelTui, tmp_path: Path) -> None:
    """The budget ends a round in which a kernel is still unwritten. The round's runoff still takes place."""
    search = Search(kernel_tui, tmp_path)
    turns, one, other, *_ = search.judge_one_that_turns()
    search.until(lambda state: state.verdicts >= 3)
    assert kernel_tui("budget", "demo", "--minutes", "0.1").returncode == ExitCode.OK
    state = search.until(lambda state: state.engine is not None and state.engine.stopped is not None, ended=True)
    assert state.engine is not None and state.engine.stopped == "budget"
    assert state.problems["softmax"].rounds[0].finished_at is None
    search.check(state, turns, one, other, "error")


def test_a_winner_whose_speedup_is_uncertain_is_judged_once_more(kernel_tui: KernelTui, tmp_path: Path) -> None:
    search = Search(kernel_tui, tmp_path, canned.PROBLEM, pairs=40)
    search.answer("softmax.r0.ideas.start.0", canned.ideas(*canned.IDEAS[:1]))
    unsteady = canned.good("unsteady").replace(
        "{", "{\n    for (volatile long n = rand() % 8 * 1000000; n > 0; n = n - 1) {}", 1
    )
    search.answer("softmax.r0.kernel.i1.0", canned.block("#include <stdlib.h>\n" + unsteady))
    search.until(lambda state: bool(state.leaders("softmax")))
    assert kernel_tui("budget", "demo", "--minutes", "0.1").returncode == ExitCode.OK
    search.until(lambda state: state.engine is not None and state.engine.stopped is not None, ended=True)
    (said,) = [
        event.text for event in search.events() if isinstance(event, LogLine) and " again (previously: " in event.text
    ]
    given = [event for event in search.events() if isinstance(event, VerdictGiven)]
    assert [bool(one.why) for one in given] == ([False] if "keeps the first verdict" in said else [False, True])
    assert said.startswith("softmax: the judge evaluated the best kernel v1 ")
