"""Read a kernel file and inspect its problem."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.exit_codes import ExitCode
from tui.cli.shared.common import Failure

if TYPE_CHECKING:
    from engine.problem.names import ProblemFile
    from engine.problem.spec import Language, ProblemSpec


def read_kernel(path: Path) -> str:
    """Read a kernel's source. Raises UnreadableFile."""
    from engine.system.text_file import read_text

    return read_text(path)


_EXPORTED = re.compile(r"# A KernelBench solution for .*, exported by kernel-tui\.\n((?:# .*\n)*)")
"""Regular expression for the header of an exported solution."""
_SESSION = re.compile(r"^# Kernel \S+ of session (.+?)(?:: speedup |; verdict: |\.$)", re.MULTILINE)
_PROBLEM = re.compile(r"^# Problem: (\S.*?)\s*$", re.MULTILINE)


class ExportedHeader(NamedTuple):
    """The session and the problem that the header of an exported solution names.

    A name is None if the header does not contain it.
    """

    session: str | None
    problem: str | None


def problem_line(problem: str) -> str:
    """Return the header line that names an exported solution's problem, without the comment marker."""
    return f"Problem: {problem}"


def exported_header(path: Path) -> ExportedHeader:
    """Read the header of an exported solution. For any other file, or an unreadable file, both fields are None."""
    from engine.system.text_file import UnreadableFile

    try:
        found = _EXPORTED.match(read_kernel(path))
    except (UnreadableFile, OSError):
        found = None
    if found is None:
        return ExportedHeader(None, None)
    session, problem = _SESSION.search(found[1]), _PROBLEM.search(found[1])
    return ExportedHeader(session[1] if session else None, problem[1] if problem else None)


def problem_in_header(path: Path) -> str | None:
    """Return the problem that the header of an exported solution names.

    Return None if the file has no such header, or if the current directory lacks the named problem file.
    """
    from engine.problem.catalog import BUILTIN

    problem = exported_header(path).problem
    if problem is None or problem.startswith(BUILTIN):
        return problem
    try:
        return problem if Path(problem).is_file() and not path.samefile(problem) else None
    except OSError:
        return None


def language_of(path: Path, source: str = "") -> Language:
    """Return the language of a kernel file with the text ``source``. Raises Failure for an unknown suffix."""
    from engine.problem.spec import language_of_file

    if (language := language_of_file(path.suffix, source)) is None:
        of_session = re.fullmatch(r"v\d+", path.name) is not None and not path.exists()
        hint = (
            f"; export a session's kernel first: kernel-tui export SESSION {path.name} -o {path.name}.py. "
            "To compare two kernels of a session, press c in the monitor"
        )
        raise Failure(f"{path}: not a kernel file (.cpp, .cu or .py){hint if of_session else ''}", ExitCode.USAGE)
    return language


def kernel_of(path: Path) -> tuple[Language, str]:
    """Return a kernel file's language and text. Raises UnreadableFile, and Failure for an unknown suffix."""
    language_of(path)
    source = read_kernel(path)
    return language_of(path, source), source


def no_arch_for_cpp(kernel: Path | str, language: Language, arch: str | None) -> None:
    """Raise Failure if the user gave ``--arch`` for a C++ kernel."""
    if language == "cpp" and arch is not None:
        raise Failure(
            f"--arch {arch}: {kernel} is C++ and runs on this machine's CPU; --arch is for .cu kernels",
            ExitCode.USAGE,
        )


def problem_file(problem: str) -> ProblemFile:
    """Return the problem file that ``problem`` names. Raises CatalogError, and Failure if several match."""
    from engine.problem.catalog import reference_of, resolve

    files = resolve([problem], Path.cwd())
    if len(files) != 1:
        first = ", ".join(reference_of(file.path) for file in files[:3])
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        raise Failure(f"{problem}: matches {len(files)} problems ({first}{more}); name one of them", ExitCode.USAGE)
    return files[0]


async def inspect_problem(problem: str) -> ProblemSpec:
    """Inspect the problem that ``problem`` names. Raises CatalogError and Failure."""
    from engine.problem.catalog import inspect_files
    from engine.problem.spec import ProblemSpec

    answer = (await inspect_files([problem_file(problem)]))[0]
    if not isinstance(answer, ProblemSpec):
        code = ExitCode.NO_TOOLS if "PyTorch is not installed" in str(answer) else ExitCode.USAGE
        raise Failure(str(answer), code)
    return answer
