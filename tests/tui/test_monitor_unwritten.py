"""If no proposer supports a problem, the monitor shows why and what to do, and the key a seeds a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input

from benchmarks.synthetic_session import CPU
from engine.problem.spec import ProblemSpec
from engine.session.records import events as ev
from engine.session.records import requests as cmd
from engine.session.records.verdict import Baseline, Timing
from engine.session.store import EngineLock, EventWriter, create_session
from tests.tui.conftest import Engine, monitor_of

REASON = "the playbook has no template for fft, because none of its patterns covers the operator fft_rfft"
REMEDIES = (
    "Seed a kernel: press a in the monitor, or run: kernel-tui seed-kernel fresh kernel.cpp --problem fft",
    'Or add this table to the config and run it again:\n[[models]]\nprovider = "manual"    # you answer its prompts',
)


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Engine]:
    """Create a session whose only problem is waiting for a hand-written kernel."""
    paths = create_session(tmp_path, "fresh", "# nothing\n", "fresh.toml", 1)
    lock, writer = EngineLock(paths), EventWriter(paths)
    engine = Engine(paths, lock, writer)
    spec = ProblemSpec(id="fft", name="fft", path="fft.py", source="", tensors=())
    engine.record(
        ev.EngineStarted(pid=os.getpid(), host="h", version="0", resumed=False, devices=(CPU,), sandbox="none"),
        ev.ProblemAdded(problem=spec, language="cpp", header=""),
        ev.RoundStarted(problem="fft", round=0, parents=()),
        ev.BaselineMeasured(problem="fft", baseline=Baseline("eager", Timing(2.0, 2.0, 2.0, 9))),
        ev.CannotWrite(problem="fft", reason=REASON, remedies=REMEDIES),
    )
    yield engine
    writer.close()
    lock.release()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_the_reason_and_the_remedies_are_shown_in_full(stuck: Engine, size: tuple[int, int]) -> None:
    async with monitor_of(stuck.paths, size) as monitor:
        await monitor.until(lambda: "fft" in monitor.app.model.state.problems, "the problem")
        await monitor.press("4")
        await monitor.until_shown("What you can do")
        shown = " ".join(line.text.strip() for line in monitor.app.monitor_screen.detail.view.lines)
        for text in (REASON, *REMEDIES):
            assert " ".join(text.split()) in " ".join(shown.split())


async def test_a_kernel_is_seeded_for_it(stuck: Engine, tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text("// by hand\n")
    async with monitor_of(stuck.paths) as monitor:
        await monitor.until(lambda: "fft" in monitor.app.model.state.problems, "the problem")
        await monitor.until_shown("no proposer")
        await monitor.press("a")
        monitor.app.screen.query_one("#path", Input).value = str(tmp_path / "k.cpp")
        await monitor.press("enter")
        await monitor.until(lambda: bool(stuck.commands()), "the request")
        request = stuck.commands()[-1]
        assert isinstance(request, cmd.SeedKernel) and (request.problem, request.source) == ("fft", "// by hand\n")
