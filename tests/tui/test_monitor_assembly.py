"""The ASM tab compiles the selected kernel in another process, with real compilers, and shows the machine code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.synthetic_session import CPU
from engine.problem.spec import Language, ProblemSpec
from engine.session.records import events as ev
from engine.session.store import EngineLock, EventWriter, create_session
from tests.tui.conftest import Engine, Monitor, monitor_of

SOURCES: dict[Language, str] = {
    "cpp": 'extern "C" int launch(const float* x, float* y, int n) {\n'
    "    for (int i = 0; i < n; i++) y[i] = 2.0f * x[i];\n    return 0;\n}\n",
    "cu": "__global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }\n"
    'extern "C" int launch(float* x) { twice<<<1, 32>>>(x); return 0; }\n',
    "py": "class ModelNew: ...\n",
}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    paths = create_session(tmp_path, "fresh", "# nothing\n", "fresh.toml", 1)
    lock, writer = EngineLock(paths), EventWriter(paths)
    yield Engine(paths, lock, writer)
    writer.close()
    lock.release()


def write_kernel(engine: Engine, language: Language, source: str) -> None:
    spec = ProblemSpec(id="twice", name="twice", path="twice.py", source="", tensors=())
    engine.record(
        ev.EngineStarted(pid=os.getpid(), host="h", version="0", resumed=False, devices=(CPU,), sandbox="none"),
        ev.ProblemAdded(problem=spec, language=language, header=""),
        ev.RoundStarted(problem="twice", round=0, parents=()),
        ev.IdeaProposed(
            idea="i1", problem="twice", round=0, parent=None, category="first", text="t", proposer="hand"
        ),
        ev.VariantWritten(
            variant="v1", idea="i1", problem="twice", round=0, parent=None, language=language, proposer="hand",
            source=engine.writer.put_blob(source),
        ),
    )  # fmt: skip


async def show_assembly(monitor: Monitor) -> None:
    await monitor.until(lambda: "v1" in monitor.app.model.state.variants, "the kernel")
    assert monitor.app.monitor_screen.tree_view.select("v1")
    await monitor.press("left_square_bracket")
    assert monitor.app.monitor_screen.detail.tab == "ASM"


def shown(monitor: Monitor) -> str:
    return "\n".join(line.text for line in monitor.app.monitor_screen.detail.view.lines)


@pytest.mark.parametrize(("language", "instruction"), [("cpp", "ret"), ("cu", "registers")])
async def test_machine_code_stands_beside_its_source_lines(fresh: Engine, language: Language, instruction: str) -> None:
    write_kernel(fresh, language, SOURCES[language])
    async with monitor_of(fresh.paths) as monitor:
        await show_assembly(monitor)
        await monitor.until(lambda: instruction in shown(monitor), "the machine code")
        assert "2.0f" in shown(monitor), "the source line"


async def test_what_has_no_machine_code_says_why(fresh: Engine) -> None:
    write_kernel(fresh, "py", SOURCES["py"])
    async with monitor_of(fresh.paths) as monitor:
        await show_assembly(monitor)
        await monitor.until(lambda: "no machine code" in shown(monitor), "the reason")


async def test_a_missing_tool_is_named(fresh: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    write_kernel(fresh, "cpp", SOURCES["cpp"])
    async with monitor_of(fresh.paths) as monitor:
        await show_assembly(monitor)
        await monitor.until(lambda: "A tool is missing: objdump" in shown(monitor), "what is missing")
