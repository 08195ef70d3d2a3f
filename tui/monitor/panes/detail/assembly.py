"""ASM tab: a kernel's source lines, each with its machine code (SASS or PTX for CUDA, x86 for C++)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.strip import Strip

from engine.session.state.session_state import VariantState
from engine.system.python_process import python_command, python_path
from tui.monitor.panes.detail.text import heading, wrapped
from tui.monitor.panes.lines import line
from tui.monitor.theme.palette import Palette
from tui.text.machine_code import code_lines, occupancy_lines
from tui.text.sanitize import clean_lines, one_line
from tui.view.model import Model

if TYPE_CHECKING:
    from asyncio import Task

    from engine.evaluation.inspect.machine_code import MachineCode
    from tui.monitor.panes.detail.disassemble import Answer

DEFAULT_ARCH = "sm_90a"
"""GPU architecture to compile for in a session without a GPU."""
KEPT = 16
"""Maximum number of cached listings. A listing may have tens of thousands of lines."""
TIMEOUT_S = 180.0
WORKER = "tui.monitor.panes.detail.disassemble"


class Assembly:
    """Compile and disassemble kernels of ``model``, one at a time, in a separate process.

    ``Assembly`` calls ``ready`` when a listing is available.
    """

    def __init__(self, model: Model, ready: Callable[[], None]) -> None:
        self._model = model
        self._ready = ready
        self._answers: dict[str, Answer] = {}
        self._task: Task[None] | None = None
        self._running = ""

    def known(self, variant: VariantState) -> bool:
        """Return whether the cache contains the kernel's listing or the reason why there is none."""
        return variant.source in self._answers

    def ask(self, variant: VariantState) -> None:
        """Compile ``variant`` unless its compilation is finished or in progress. Cancel the compilation of any other
        kernel.
        """
        if self.known(variant) or self._running == variant.source:
            return
        self.stop()
        self._running = variant.source
        self._task = asyncio.create_task(self._compile(variant))

    def stop(self) -> None:
        """Cancel the running compilation."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._running = None, ""

    def lines(self, variant: VariantState, palette: Palette, width: int) -> list[Strip]:
        """Return the kernel's listing, or lines that say why there is none."""
        found = self._answers.get(variant.source)
        if found is None:
            return [line((f"Compiling and disassembling {variant.id} …", palette.dim))]
        if found.code is None:
            return wrapped(f"{variant.id} has no machine code to show. {found.failure}", palette.warn, width)
        source = self._model.source.text(variant.source)
        return list(assembly_lines(found.code, variant.id, source, palette, width))

    async def _compile(self, variant: VariantState) -> None:
        from engine.session.store import SessionError
        from tui.monitor.panes.detail.disassemble import Answer, Request

        archs = [device.arch for device in self._model.state.devices.values() if device.kind == "cuda"]
        header = self._model.state.problems[variant.problem].header
        try:
            source = await asyncio.to_thread(self._model.source.text, variant.source)
            found = await _run(Request(source, variant.language, header, archs[0] if archs else DEFAULT_ARCH))
        except SessionError as error:
            found = Answer(failure=error.brief)
        while len(self._answers) >= KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[variant.source], self._running = found, ""
        self._ready()


async def _run(request: object) -> Answer:
    """Run a disassembly process for ``request``, at low priority because this machine may be timing kernels."""
    import msgspec

    from tui.monitor.panes.detail.disassemble import Answer

    command = [*(["nice", "-n", "15"] if shutil.which("nice") else []), *python_command(WORKER)]
    environment = os.environ | {"PYTHONPATH": python_path()}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(msgspec.json.encode(request)), TIMEOUT_S)
        return msgspec.json.decode(output, type=Answer)
    except TimeoutError:
        return Answer(failure=f"The compiler took longer than {TIMEOUT_S:g} s.")
    except msgspec.MsgspecError:
        return Answer(failure=f"The disassembly process exited with status {process.returncode}.")
    finally:
        if process.returncode is None:  # The process group includes the compiler that the process started.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)


def assembly_lines(code: MachineCode, name: str, source: str, palette: Palette, width: int) -> Iterator[Strip]:
    kind = "x86" if code.language == "cpp" else f"SASS for {code.arch}"
    yield line((f"{name}  ", palette.bold), (kind, palette.title))
    if code.note:
        yield from wrapped(one_line(code.note, 600), palette.warn, width)
    for function in code.functions:
        counted = f"  {function.instructions} instructions" if function.blocks else ""
        yield line("")
        yield line((function.name, palette.title), (counted, palette.dim))
        for words in occupancy_lines(code.arch, function, source):
            yield from wrapped(words.strip(), palette.text, width)
        for shown in code_lines(function):
            yield line((shown.text, palette.accent if shown.is_source else palette.text))
    if code.ptx and not any(function.blocks for function in code.functions):
        yield from heading("PTX", palette)
        for text in clean_lines(code.ptx):
            yield line((text, palette.text))
