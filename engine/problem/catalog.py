"""Resolve the entries of ``problems`` in a config to files, ids and specifications. This module does not import torch.

A child process inspects the files, so that the engine never imports torch or user code. If a file hangs or crashes the
child, a new child inspects the remaining files. A cache holds the specifications of files that a child has already
inspected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import resources, util
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.problem.failure import ProblemFailure
from engine.problem.inspection import Inspected, Job
from engine.problem.names import ProblemFile, assign_ids
from engine.problem.spec import Language, ProblemSpec
from engine.problem.spec_cache import SpecCache
from engine.system.child import end_group
from engine.system.globbing import TooWide, has_magic, matches
from engine.system.python_process import python_command, python_path
from engine.system.text_file import UnreadableFile, read_text

BUILTIN = "builtin:"
_START_S = 60
_GRACE_S = 10
_LAST_WORDS_S = 1.0
_STDERR_TAIL_BYTES = 4000
_MAX_LINE_BYTES = 64 << 20


class CatalogError(Exception):
    """Some ``problems`` entries in the config do not match a problem file.

    ``entries``: pairs of an entry and a message with the cause and the remedy, in the config's order.
    """

    def __init__(self, entries: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{entry}: {message}" for entry, message in entries))
        self.entries = tuple(entries)


class ProblemRow(Struct, frozen=True):
    """One row in the output of ``kernel-tui problems``. Shapes look like ``x (4096, 65536) float32``.

    ``reference``: the problem's name for a config or for ``--problem``.
    """

    id: str
    reference: str
    path: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    languages: tuple[Language, ...]
    remark: str


def builtin_names() -> tuple[str, ...]:
    """Return the names of the built-in problems without the prefix ``builtin:``, for example ``quickstart/softmax``."""
    root = _builtin_root()
    return tuple(sorted(f"{path.parent.name}/{path.stem}" for path in root.glob("*/*.py")))


def reference_of(path: Path) -> str:
    """Return the name that a config in the current directory uses for the file.

    The name is ``builtin:FOLDER/NAME`` for a built-in problem, a relative path for a file below the current directory,
    or else an absolute path.
    """
    with contextlib.suppress(ValueError):
        return f"{BUILTIN}{path.relative_to(_builtin_root().resolve()).with_suffix('')}"
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd().resolve()))
    return str(path)


def _builtin_root() -> Path:
    return Path(str(resources.files("problems")))


def resolve(entries: Iterable[str], base: Path) -> list[ProblemFile]:
    """Return the files that ``entries`` name, in order, without duplicates, and with unique ids.

    An entry is a path, a directory (for its ``*.py`` files, sorted), a glob, or a built-in problem such as
    ``builtin:quickstart/softmax`` or ``builtin:headline/*``. Relative paths resolve against ``base``. Raises
    ``CatalogError``, which lists every bad entry.
    """
    paths: dict[Path, None] = {}
    wrong: list[tuple[str, str]] = []
    for entry in entries:
        try:
            paths.update(dict.fromkeys(_expand(entry, base)))
        except _NoFile as error:
            wrong.append((entry, str(error)))
    if wrong:
        raise CatalogError(wrong)
    return assign_ids(list(paths))


class _NoFile(Exception):
    pass


def _expand(entry: str, base: Path) -> list[Path]:
    if entry.startswith(BUILTIN):
        return _expand_builtin(entry.removeprefix(BUILTIN))
    path = base / Path(entry).expanduser()
    if path.is_file():
        if path.suffix != ".py":
            raise _NoFile("is not a Python file; name a .py file in KernelBench's format")
        return [path.resolve()]
    if path.is_dir():
        found = sorted(item for item in path.glob("*.py") if item.name != "__init__.py" and item.is_file())
        if not found:
            raise _NoFile(
                "the directory contains no .py file; name a directory with problem files, or a glob like `dir/*/*.py`"
            )
        return [item.resolve() for item in found]
    if has_magic(entry):
        try:
            found = [match for match in matches(path) if match.suffix == ".py" and match.is_file()]
        except TooWide as error:
            raise _NoFile(str(error)) from None
        if not found:
            raise _NoFile(f"no .py file matches; patterns are relative to {base}")
        return [item.resolve() for item in found]
    if path.exists():
        raise _NoFile("is a pipe, a device or a socket; name a .py file in KernelBench's format")
    meant = _builtins_like(entry, cutoff=1.0)
    if not meant:
        beside = [item.name for item in path.parent.glob("*.py")]
        meant = [str(Path(entry).with_name(name)) for name in get_close_matches(path.name, beside, n=1, cutoff=0.75)]
    meant = meant or _builtins_like(entry.removesuffix(".py"), cutoff=0.75)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    place = "" if Path(entry).is_absolute() else f" ({path})"
    raise _NoFile(f"no such file or directory{place}{hint}")


def _expand_builtin(name: str) -> list[Path]:
    root = _builtin_root()
    pattern = f"{name}/*" if (root / name).is_dir() and name else name
    found = sorted(path for path in root.glob(f"{pattern.removesuffix('.py')}.py") if path.parent != root)
    if not found or ".." in name:
        near = _builtins_like(name.removesuffix(".py"), cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}? Available" if near else "available"
        raise _NoFile(f"no such built-in problem; {hint}: {', '.join(builtin_names())}")
    return found


def _builtins_like(name: str, cutoff: float) -> list[str]:
    """Return built-in problems whose name resembles ``name``. If ``name`` has no slash, compare it with only the last
    part of each name.
    """
    known = {one: one if "/" in name else one.rpartition("/")[2] for one in builtin_names()}
    near = get_close_matches(name, known.values(), n=1, cutoff=cutoff)
    return [BUILTIN + one for one, part in known.items() if part in near]


async def inspect_files(
    files: Sequence[ProblemFile | Path], *, limit_s: int = 60, on_file: Callable[[str], None] = lambda problem_id: None
) -> list[ProblemSpec | ProblemFailure]:
    """Inspect each file and return its specification or its failure, in order.

    The function never raises an exception for an error in a file. Canceling the call kills the child process.

    ``limit_s``: seconds per file, not counting the child's startup. ``on_file``: receives the id of each file that is
    not in the cache, when its inspection starts.
    """
    paths = [file.path if isinstance(file, ProblemFile) else file for file in files]
    ids = [file.id if isinstance(file, ProblemFile) else own.id
           for file, own in zip(files, assign_ids(paths), strict=True)]  # fmt: skip
    jobs = [Job(problem_id, str(path)) for problem_id, path in zip(ids, paths, strict=True)]
    return await _inspect(jobs, limit_s, on_file)


async def inspect_sources(
    problem_id: str, path: str, sources: Sequence[str], *, limit_s: int = 60
) -> list[ProblemSpec | ProblemFailure]:
    """Inspect ``sources`` instead of the file at ``path``: a session's frozen copy, or copies with other sizes."""
    return await _inspect([Job(problem_id, path, source) for source in sources], limit_s)


async def _inspect(
    jobs: Sequence[Job], limit_s: int, on_file: Callable[[str], None] = lambda problem_id: None
) -> list[ProblemSpec | ProblemFailure]:
    if util.find_spec("torch") is None:
        return [_failure(job, "PyTorch is not installed", "install it: pip install torch") for job in jobs]
    cache = SpecCache()
    sources = [_source_of(job) for job in jobs]
    known = [cache.get(job.id, job.path, source) for job, source in zip(jobs, sources, strict=True)]
    unknown = [job for job, spec in zip(jobs, known, strict=True) if spec is None]
    found: list[ProblemSpec | ProblemFailure] = []
    while len(found) < len(unknown):
        found += await _inspect_batch(unknown[len(found) :], limit_s, on_file)
    new = iter(found)
    results: list[ProblemSpec | ProblemFailure] = []
    for job, source, spec in zip(jobs, sources, known, strict=True):
        results.append(result := spec or next(new))
        # The file may have changed since the engine read it, so the cache entry must match the inspected source.
        if spec is None and isinstance(result, ProblemSpec) and result.source == source:
            cache.put(job.id, job.path, source, result)
    return results


def _source_of(job: Job) -> str:
    """Return the text to inspect, or "" if the file is not readable; the inspection then reports the cause."""
    if job.source is not None:
        return job.source
    with contextlib.suppress(UnreadableFile):
        return read_text(Path(job.path))
    return ""


def _failure(job: Job, message: str, hint: str) -> ProblemFailure:
    return ProblemFailure(id=job.id, path=job.path, message=message, hint=hint)


async def _inspect_batch(
    jobs: Sequence[Job], limit_s: int, on_file: Callable[[str], None]
) -> list[ProblemSpec | ProblemFailure]:
    """Inspect ``jobs`` in one child process; return their results up to and including the job that ended the child."""
    options = ("--parent", str(os.getpid()), "--limit", str(limit_s), "--jobs")
    process = await asyncio.create_subprocess_exec(
        *python_command("engine.problem.inspection", *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        start_new_session=True,
        env=_environment(),
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    tail = asyncio.ensure_future(_tail(process.stderr))
    results: list[ProblemSpec | ProblemFailure] = []
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(list(jobs)))
            await process.stdin.drain()
            process.stdin.close()
        for job in jobs:
            on_file(job.id)
            allowance = limit_s + _GRACE_S + (0 if results else _START_S)
            try:
                line = await asyncio.wait_for(process.stdout.readline(), allowance)
            except TimeoutError:
                results.append(_failure(job, f"kernel-tui stopped the inspection after {limit_s} s",
                                        "create tensors with torch functions instead of long loops"))  # fmt: skip
                break
            if not line:
                await end_group(process)
                # A process that left the group may keep the pipe open, so the wait for stderr is bounded.
                said, _ = await asyncio.wait([tail], timeout=_LAST_WORDS_S)
                results.append(_ended(job, process.returncode or 0, tail.result() if said else ""))
                break
            answer = msgspec.json.decode(line, type=Inspected)
            results.append(
                answer.spec
                or answer.failure
                or _failure(job, "the inspection returned no result", "report this as a bug")
            )
    finally:
        await end_group(process)
        tail.cancel()
    return results


def _ended(job: Job, code: int, stderr: str) -> ProblemFailure:
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
    words = stderr.strip().splitlines()
    said = f" ({words[-1].strip()[:300]})" if words else ""
    return _failure(job, f"the inspection {how}{said}", f"run `{sys.executable} {job.path}` to see the error")


async def _tail(stream: asyncio.StreamReader) -> str:
    """Return only the end of the child's output, because the output may be large."""
    kept = b""
    while chunk := await stream.read(65536):
        kept = (kept + chunk)[-_STDERR_TAIL_BYTES:]
    return kept.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Return the environment for the child process: the engine's environment, with this package importable and GPUs
    hidden.
    """
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "PYTHONUNBUFFERED": "1",
    }


async def table(
    files: Sequence[ProblemFile], *, limit_s: int = 60, on_file: Callable[[str], None] = lambda problem_id: None
) -> list[ProblemRow]:
    """Return one row per file for the ``problems`` command.

    ``on_file``: as in :func:`inspect_files`.
    """
    answers = await inspect_files(files, limit_s=limit_s, on_file=on_file)
    return [row_of(file, answer) for file, answer in zip(files, answers, strict=True)]


def row_of(file: ProblemFile, answer: ProblemSpec | ProblemFailure) -> ProblemRow:
    """Return the row of one inspected file."""
    if isinstance(answer, ProblemFailure):
        return ProblemRow(file.id, reference_of(file.path), str(file.path), (), (), (), (), str(answer))

    def shapes(role: str) -> tuple[str, ...]:
        return tuple(f"{t.name} {t.shape} {t.dtype}" for t in getattr(answer, role))

    lacks = "Python kernels only" if answer.languages else "no kernels"
    remark = "" if answer.c_refusal is None else f"{lacks}: {answer.c_refusal}"
    return ProblemRow(
        answer.id,
        reference_of(file.path),
        str(file.path),
        shapes("inputs"),
        shapes("weights"),
        shapes("outputs"),
        answer.languages,
        remark,
    )
