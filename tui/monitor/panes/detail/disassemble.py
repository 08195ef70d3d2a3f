"""Compile a kernel and print its machine code as JSON.

This module runs as a separate process, so that the monitor stays responsive.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from msgspec import Struct

from engine.evaluation.inspect.machine_code import DoesNotBuild, MachineCode, machine_code
from engine.problem.spec import Language
from engine.system.tool_paths import NoCompiler, NoTool


class Request(Struct, frozen=True):
    """A kernel to disassemble. ``header`` is the C header of the kernel's problem. ``arch`` is a GPU architecture, for
    CUDA only.
    """

    source: str
    language: Language
    header: str
    arch: str


class Answer(Struct, frozen=True):
    """The kernel's machine code, or a sentence that says why there is none."""

    code: MachineCode | None = None
    failure: str = ""


async def answer(request: Request) -> Answer:
    try:
        return Answer(await machine_code(request.source, request.language, request.header, request.arch))
    except DoesNotBuild as error:
        return Answer(failure=f"The kernel does not build:\n{error}")
    except (NoCompiler, NoTool) as error:
        return Answer(failure=f"A tool is missing: {error}")
    except (ValueError, OSError) as error:
        return Answer(failure=str(error))


def main() -> None:
    """Read a ``Request`` from standard input, and write an ``Answer`` to standard output."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(answer(request))))


if __name__ == "__main__":
    main()
