"""Show a kernel's machine code (PTX and SASS, or x86) next to its source lines.

The module recompiles the kernel with the flags of a search and with line information, which does not change the
instructions. The module does not run the kernel, so no GPU is necessary. ``.cu`` kernels require nvcc and nvdisasm;
``.cpp`` kernels require the C++ compiler and objdump.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from engine.evaluation.build.compilers import CUDA_FLAGS, command_line, compiler_of, run_compiler
from engine.problem.spec import MODULES, Language
from engine.system.tool_paths import NoTool, find_cuda_tool

_NOT_FOR_CUBIN = ("-Xcompiler", "-fPIC", "-shared")


class CodeBlock(Struct, frozen=True):
    """Consecutive instructions from one source line. The first ``line`` is 1; 0 means a line outside the kernel's
    file.
    """

    line: int
    source: str
    instructions: tuple[str, ...]


class Function(Struct, frozen=True, omit_defaults=True):
    """One CUDA kernel or C++ function. Register counts are per thread. Memory sizes are in bytes; ``shared_bytes`` is
    static shared memory.
    """

    name: str
    blocks: tuple[CodeBlock, ...]
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None

    @property
    def instructions(self) -> int:
        return sum(len(block.instructions) for block in self.blocks)


class MachineCode(Struct, frozen=True, omit_defaults=True):
    """One kernel's machine code. ``ptx`` is empty for C++. ``note``: which part is missing and why, or ""."""

    language: Language
    arch: str
    functions: tuple[Function, ...]
    ptx: str = ""
    note: str = ""


class DoesNotBuild(Exception):
    """A kernel that does not compile; the message is the compiler's output."""


async def machine_code(source: str, language: Language, header: str, arch: str) -> MachineCode:
    """Compile and disassemble. ``arch``: a CUDA architecture such as ``sm_90a``; ignored for C++.

    Raises ``DoesNotBuild`` if the kernel does not compile, ``NoCompiler`` or ``NoTool`` if a program is missing, and
    ``ValueError`` for a ``.py`` kernel.
    """
    if language in MODULES:
        raise ValueError("a .py kernel has no machine code of its own; pass a .cu or .cpp kernel")
    with tempfile.TemporaryDirectory(prefix="kernel-tui-code-") as directory:
        work = Path(directory)
        (work / f"kernel.{language}").write_text(source, errors="surrogateescape")
        (work / "problem.h").write_text(header)
        if language == "cu":
            return await _cuda(source, arch, work)
        return await _cpp(source, work)


async def _cuda(source: str, arch: str, work: Path) -> MachineCode:
    file, cubin, ptx = work / "kernel.cu", work / "kernel.cubin", work / "kernel.ptx"
    nvcc = compiler_of("cu")
    flags = [flag for flag in CUDA_FLAGS if flag not in _NOT_FOR_CUBIN]
    head = [nvcc, f"-gencode=arch={arch.replace('sm_', 'compute_')},code={arch}", *flags]
    tail = ["-include", str(work / "problem.h"), str(file), "-o"]
    log, _ = await asyncio.gather(
        _compiled([*head, "-cubin", *tail, str(cubin)], work), _compiled([*head, "-ptx", *tail, str(ptx)], work)
    )
    names = await _demangled(re.findall(r"Compiling entry function '(\S+)'", log))
    code = MachineCode("cu", arch, tuple(_resources(log, names)), ptx.read_text())
    try:
        listing = await _output([find_cuda_tool("nvdisasm"), "-g", "-c", str(cubin)])
    except NoTool as error:
        return replace(code, note=f"no SASS: {error}")
    blocks = {names.get(name, name): found for name, found in _sass(listing, source.splitlines())}
    return replace(code, functions=tuple(replace(one, blocks=blocks.get(one.name, ())) for one in code.functions))


async def _cpp(source: str, work: Path) -> MachineCode:
    if (objdump := shutil.which("objdump")) is None:
        raise NoTool("objdump is not on PATH; install binutils (Debian, Ubuntu: apt-get install binutils)")
    library = work / "kernel.so"
    command = command_line("cpp", compiler_of("cpp"), "", work / "kernel.cpp", library, [work / "problem.h"])
    await _compiled([*command, "-g"], work)
    listing = await _output([objdump, "-d", "-l", "-C", "--no-show-raw-insn", "--section=.text", str(library)])
    return MachineCode("cpp", "", tuple(_x86(listing, source.splitlines())))


async def _compiled(command: list[str], work: Path) -> str:
    code, log = await run_compiler(command, work)
    log = log.replace(str(work) + "/", "")
    if code != 0:
        raise DoesNotBuild(log.strip())
    return log


async def _output(command: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise NoTool(f"{Path(command[0]).name} failed: {errors.decode(errors='replace').strip()[:400]}")
    return output.decode(errors="replace")


async def _demangled(names: list[str]) -> dict[str, str]:
    """Return demangled names with their parameters; without c++filt, return the names unchanged."""
    if not names or (tool := shutil.which("c++filt")) is None:
        return {name: name for name in names}
    lines = (await _output([tool, *names])).splitlines()
    return dict(zip(names, lines, strict=True))


def _resources(log: str, names: dict[str, str]) -> Iterator[Function]:
    """Yield the resources of each kernel from the output of ``ptxas -v``."""
    _, *parts = re.split(r"Compiling entry function '(\S+)'[^\n]*\n", log)
    for name, text in zip(parts[::2], parts[1::2], strict=True):

        def figure(pattern: str, text: str = text) -> int | None:
            return int(found[1]) if (found := re.search(pattern, text)) else None

        registers = figure(r"Used (\d+) registers")
        spills = (figure(r"(\d+) bytes spill stores"), figure(r"(\d+) bytes spill loads"))
        yield Function(
            names.get(name, name),
            (),
            registers=registers,
            spill_bytes=sum(one or 0 for one in spills),
            stack_bytes=figure(r"(\d+) bytes stack frame"),
            shared_bytes=figure(r"(\d+) bytes smem") or 0,
        )


def _sass(listing: str, source: list[str]) -> Iterator[tuple[str, tuple[CodeBlock, ...]]]:
    """Yield mangled kernel names and their code from the output of ``nvdisasm -g -c``."""
    for section in re.split(r"(?m)^//-+ \.text\.", listing)[1:]:
        name = section.split(maxsplit=1)[0]
        blocks = _Blocks(source)
        for line in section.splitlines():
            if place := re.match(r'\s*//## File "([^"]*)", line (\d+)', line):
                blocks.at(place[1].endswith("/kernel.cu"), int(place[2]))
            elif label := re.match(r"(\.L_x_\d+):", line):
                blocks.add(f"{label[1]}:")
            elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?\s*$", line):
                blocks.add(instruction[1])
        yield name, blocks.done()


def _x86(listing: str, source: list[str]) -> Iterator[Function]:
    """Yield the functions of the kernel's own file from the output of ``objdump -d -l``."""
    for section in re.split(r"(?m)^[0-9a-f]+ <", listing)[1:]:
        name, _, body = section.partition(">:\n")
        blocks = _Blocks(source)
        own = False
        for line in body.splitlines():
            if place := re.match(r"(/\S*|kernel\.cpp):(\d+)(?: \(discriminator \d+\))?$", line):
                inside = place[1].endswith("kernel.cpp")
                own = own or inside
                blocks.at(inside, int(place[2]))
            elif instruction := re.match(r"\s*[0-9a-f]+:\t(.*?)\s*$", line):
                blocks.add(instruction[1])
        if own:
            yield Function(name, blocks.done())


class _Blocks:
    """Collect consecutive instructions that belong to one source line."""

    def __init__(self, source: list[str]) -> None:
        self._source = source
        self._line = 0
        self._blocks: list[tuple[int, list[str]]] = []

    def at(self, own_file: bool, line: int) -> None:
        self._line = line if own_file else 0

    def add(self, instruction: str) -> None:
        if not self._blocks or self._blocks[-1][0] != self._line:
            self._blocks.append((self._line, []))
        self._blocks[-1][1].append(instruction)

    def done(self) -> tuple[CodeBlock, ...]:
        return tuple(
            CodeBlock(line, self._source[line - 1].strip() if 0 < line <= len(self._source) else "", tuple(found))
            for line, found in self._blocks
        )
