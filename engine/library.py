"""The library: correct kernels of many sessions, to be searched by a person and to seed new searches from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine.events import DeviceFact
from engine.factor import interval_factor
from engine.globbing import TooWide, matches
from engine.problem.spec import Form, ProblemSpec
from engine.session import SessionError, SessionPaths, SessionReader
from engine.state import SessionState, fold

_NOT_NEEDED = ("variant_stage", "log_line", "command_handled", "round_started", "round_finished")


class SavedKernel(Struct, frozen=True, kw_only=True):
    """A correct kernel of some session. ``device``: the name of the one that judged it. ``at``: Unix seconds.

    ``key``: see :func:`problem_key`. ``data`` is its proposer's own.
    """

    session: str
    directory: Path
    variant: str
    problem: str
    key: str
    form: Form
    device: str
    ms: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    category: str
    move: str
    idea: str
    note: str
    proposer: str
    data: dict[str, Any]
    digest: str
    source: str
    at: float
    best: bool


class Library(Struct, frozen=True):
    """``unread``: sessions that could not be read, with the reason."""

    kernels: tuple[SavedKernel, ...]
    sessions: int
    unread: tuple[str, ...]


def problem_key(spec: ProblemSpec) -> str:
    """The same for problems that ask the same of a kernel: tensors with shapes, scalars, and the operators between.

    Names of files, comments and classes do not matter; where a model could not be traced, its whole text does.
    """
    what = (spec.tensors, spec.scalars, spec.graph if spec.graph is not None else spec.source)
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def session_directories(patterns: Iterable[Path | str]) -> list[Path]:
    """Directories with a session that the globs name: of sessions, or of directories of sessions. Sorted.

    Raises ``TooWide`` for a glob that names too much.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        for match in matches(Path(pattern)):
            for database in (match / "session.db", *sorted(match.glob("*/session.db"))):
                if database.is_file():
                    found[database.parent.resolve()] = None
    return list(found)


def read_library(patterns: Iterable[Path | str], *, without: Collection[Path] = ()) -> Library:
    """The correct, unpruned kernels of all sessions that ``patterns`` name, the fastest of each problem first.

    ``without``: directories of sessions to leave out. A session that cannot be read costs only itself.
    """
    kernels: list[SavedKernel] = []
    unread: list[str] = []
    damaged = 0
    left_out = {path.resolve() for path in without}
    directories: dict[Path, None] = {}
    for pattern in patterns:
        try:
            directories |= dict.fromkeys(path for path in session_directories([pattern]) if path not in left_out)
        except TooWide as error:
            unread.append(f"{pattern}: {error}")
    for directory in directories:
        try:
            with SessionReader(SessionPaths.at(directory)) as reader:
                kernels += _kernels_of(reader, fold(reader.read(without=_NOT_NEEDED)))
        except SessionError as error:
            unread.append(str(error))
            damaged += 1
    # By time: a factor also depends on how the reference fared in its minute.
    kernels.sort(key=lambda one: (one.problem, one.key, one.device, one.ms))
    return Library(tuple(kernels), len(directories) - damaged, tuple(unread))


def matching(
    kernels: Iterable[SavedKernel],
    words: Sequence[str] = (),
    *,
    problem: str | None = None,
    device: str | None = None,
    form: str | None = None,
) -> Iterator[SavedKernel]:
    """Those in which every one of ``words`` occurs (idea, category, move, note, problem, session, proposer or source),
    with ``problem`` and ``device`` in the names of theirs. Case does not matter."""
    wanted = [word.casefold() for word in words]
    for one in kernels:
        if problem is not None and problem.casefold() not in one.problem.casefold():
            continue
        if device is not None and device.casefold() not in one.device.casefold():
            continue
        if form is not None and form != one.form:
            continue
        parts = (one.idea, one.category, one.move, one.note, one.problem, one.session, one.proposer, one.source)
        text = "\n".join(parts).casefold()
        if all(word in text for word in wanted):
            yield one


def best_for(
    library: Library, spec: ProblemSpec, form: Form, device: DeviceFact, count: int
) -> list[tuple[SavedKernel, str]]:
    """Up to ``count`` kernels to begin a search of ``spec`` with, each with the reason why it was chosen.

    Only those of the same problem and form; those that were judged on such a device come first, by their time, the
    others by their factor; no source twice.
    """
    key = problem_key(spec)
    fitting = [one for one in library.kernels if one.key == key and one.form == form]
    fitting.sort(key=lambda one: (False, one.ms) if one.device == device.name else (True, -one.speedup))
    chosen: list[tuple[SavedKernel, str]] = []
    for one in fitting:
        if len(chosen) < count and one.digest not in {other.digest for other, _ in chosen}:
            rank = len(chosen) + 1
            place = "the fastest" if rank == 1 else f"number {rank}"
            same = [other for other in fitting if (other.device == device.name) == (one.device == device.name)]
            where = "on such a device" if one.device == device.name else f"on {one.device}, another device"
            chosen.append((one, f"{place} of {len(same)} kernels for this very problem {where}: {_figures(one)}"))
    return chosen


def _figures(one: SavedKernel) -> str:
    ms = f"{one.ms:.3g} ms" if one.ms < 100 else f"{one.ms:.0f} ms"
    return f"{ms}, {interval_factor(one.speedup, one.speedup_low, one.speedup_high)} eager"


def _kernels_of(reader: SessionReader, state: SessionState) -> Iterator[SavedKernel]:
    for problem in state.problems.values():
        leaders = state.leaders(problem.id)
        if not leaders:
            continue
        key = problem_key(problem.spec)
        for variant in leaders:
            verdict, idea = variant.verdict, state.ideas.get(variant.idea)
            if verdict is None or variant.kernel_ms is None or variant.speedup is None:
                continue
            yield SavedKernel(
                session=state.name,
                directory=reader.paths.directory,
                variant=variant.id,
                problem=problem.id,
                key=key,
                form=variant.form,
                device=verdict.device,
                ms=variant.kernel_ms,
                speedup=variant.speedup,
                speedup_low=verdict.speedup_low,
                speedup_high=verdict.speedup_high,
                category=idea.category if idea is not None else "other",
                move=idea.move if idea is not None else "",
                idea=idea.text if idea is not None else "",
                note=variant.note,
                proposer=variant.proposer,
                data=variant.data,
                digest=variant.source,
                source=reader.text(variant.source),
                at=variant.judged_at or 0.0,
                best=problem.best == variant.id,
            )
