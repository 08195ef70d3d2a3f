"""If the open session is moved, deleted or damaged, the monitor says so and what to do."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from engine.session.records import events as ev
from tests.tui.conftest import monitor_of
from tui.monitor.terminal.farewell import parting_words

ALARM = "SESSION MOVED OR DELETED"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_session_that_was_moved_is_said_to_be_until_it_is_back(engine: Any, size: tuple[int, int]) -> None:
    elsewhere = engine.paths.directory.with_name("elsewhere")
    async with monitor_of(engine.paths, size) as monitor:
        engine.paths.directory.rename(elsewhere)
        await monitor.until_shown(ALARM)
        assert "kernel-tui attach DIRECTORY" in monitor.text()
        assert monitor.app.model.link.pid == os.getpid()
        await monitor.press("B", "4", *["right_square_bracket"] * 6, "escape", "P", "R")
        await monitor.until_shown("was moved or deleted. Open it")
        assert "was moved or deleted" in parting_words(monitor.app.model)
        elsewhere.rename(engine.paths.directory)
        await monitor.until(lambda: ALARM not in monitor.text(), "the alarm is gone")
        assert monitor.app.model.engine == "live"


async def test_a_session_that_was_deleted_is_said_to_be(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        shutil.rmtree(engine.paths.directory)
        await monitor.until_shown(ALARM)
        await monitor.press("B", "right_square_bracket", "p", "p", "d")
        await monitor.pilot.pause(1.2)  # a tick, and a few polls
        assert ALARM in monitor.text()


async def test_an_event_that_makes_a_loop_stops_the_monitor_at_what_was_before_it(engine: Any) -> None:
    async with monitor_of(engine.paths) as monitor:
        variant = next(iter(monitor.app.model.state.variants.values()))
        idea = monitor.app.model.state.ideas[variant.idea]
        seq = monitor.app.model.state.seq
        engine.record(
            ev.IdeaProposed(
                idea=idea.id,
                problem=idea.problem,
                round=0,
                parent=idea.id,
                category="memory",
                text="",
                proposer="playbook",
            ),
            ev.LogLine(level="info", text="after the loop"),
        )
        await monitor.until_shown("contradicts earlier events")
        assert monitor.app.model.state.seq == seq and "after the loop" not in monitor.text()
        await monitor.press("j", "t", "t")
