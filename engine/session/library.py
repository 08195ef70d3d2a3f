"""The library: correct kernels from many sessions. Users can search the library, and new searches use it for a warm
start.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from engine.config.tolerance import SessionTolerance, tolerance_of
from engine.devices.fact import DeviceFact
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.speedup_text import marked, speedup
from engine.session.state.comparable import figures_of
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionError, SessionPaths, SessionReader, sessions_in
from engine.session.worked_ideas import WorkedIdea, worked_ideas
from engine.system.globbing import TooWide, matches

_NOT_NEEDED = ("variant_stage", "log_line", "command_handled", "round_finished")


class SavedKernel(Struct, frozen=True, kw_only=True):
    """A correct kernel from a session.

    ``device``: name of the device that ran the kernel. ``ms``, ``speedup``, ``uncertain`` and ``scaled``: the kernel's
    comparable figures (:class:`Figures`). ``speedup_low`` and ``speedup_high``: the verdict's 95% interval; None if a
    runoff scaled the figures. ``tolerance``: the verdict's tolerance. ``key``: see :func:`problem_key`. ``data`` is
    private to the kernel's proposer. ``at`` is in Unix seconds.
    """

    session: str
    directory: Path
    variant: str
    problem: str
    key: str
    language: Language
    device: str
    ms: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    uncertain: bool
    scaled: str
    tolerance: SessionTolerance
    category: str
    transformation: str
    idea: str
    note: str
    proposer: str
    data: dict[str, Any]
    digest: str
    source: str
    at: float
    best: bool


class Library(Struct, frozen=True):
    """Kernels from several sessions. ``unread`` lists unreadable sessions, and globs that match too many files, with
    the reasons. ``ideas`` lists the ideas that made kernels faster.
    """

    kernels: tuple[SavedKernel, ...]
    sessions: int
    unread: tuple[str, ...]
    ideas: tuple[WorkedIdea, ...] = ()


def problem_key(spec: ProblemSpec) -> str:
    """Return a problem's hash. The hash is equal for problems with the same tensors, shapes, scalars and operators.

    File names, comments and class names do not affect the hash. If PyTorch could not trace the model, the hash covers
    the problem's whole text instead.
    """
    what = (spec.tensors, spec.scalars, spec.graph if spec.graph is not None else spec.source)
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()


def session_directories(patterns: Iterable[Path | str]) -> list[Path]:
    """Return the session directories that the globs match, either directly or one level below, each directory once.

    Raises ``TooWide`` if a glob matches too many files.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        for match in matches(Path(pattern)):
            inside = [match] if SessionPaths.at(match).exists else []
            for directory in (*inside, *sessions_in(match)):
                found[directory.resolve()] = None
    return list(found)


def read_library(patterns: Iterable[Path | str], *, without: Collection[Path] = ()) -> Library:
    """Read the correct, unpruned kernels of all matching sessions.

    Within each problem and device, the sessions' best kernels come first, then other kernels by time. ``without`` lists
    session directories to skip. Skip and report unreadable sessions.
    """
    kernels: list[SavedKernel] = []
    ideas: list[WorkedIdea] = []
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
                state = fold(reader.read(without=_NOT_NEEDED))
                kernels += _kernels_of(reader, state)
                ideas += worked_ideas(state, directory.name)
        except SessionError as error:
            unread.append(str(error))
            damaged += 1
    # Runoffs chose the best kernels, so these come first. Sort other kernels by time, because a speedup also depends on
    # the machine's state while the reference ran.
    kernels.sort(key=lambda one: (one.problem, one.key, one.device, not one.best, one.ms))
    return Library(tuple(kernels), len(directories) - damaged, tuple(unread), tuple(ideas))


def newest_first(kernels: Iterable[SavedKernel]) -> list[SavedKernel]:
    """Sort kernels by session, the session with the newest kernel first. Keep the order within each session."""
    kernels = list(kernels)
    newest: dict[Path, float] = {}
    for one in kernels:
        newest[one.directory] = max(one.at, newest.get(one.directory, one.at))
    return sorted(kernels, key=lambda one: (-newest[one.directory], one.directory))


def fair_choice(
    kernels: Sequence[SavedKernel], most: int, group: Callable[[SavedKernel], Hashable]
) -> list[SavedKernel]:
    """Choose up to ``most`` kernels: the first of each group, then the second of each group, and so on. The result
    keeps the order of ``kernels``.
    """
    ranks: Counter[Hashable] = Counter()
    places: list[tuple[int, int]] = []
    for place, one in enumerate(kernels):
        places.append((ranks[group(one)], place))
        ranks[group(one)] += 1
    return [kernels[place] for place in sorted(place for _, place in sorted(places)[:most])]


def matching(
    kernels: Iterable[SavedKernel],
    words: Sequence[str] = (),
    *,
    problem: str | None = None,
    device: str | None = None,
    language: str | None = None,
) -> Iterator[SavedKernel]:
    """Filter kernels: every word must occur in the idea, category, transformation, note, problem, session, proposer or
    source. ``problem`` and ``device`` match parts of names. Case does not matter."""
    wanted = [word.casefold() for word in words]
    for one in kernels:
        if problem is not None and problem.casefold() not in one.problem.casefold():
            continue
        if device is not None and device.casefold() not in one.device.casefold():
            continue
        if language is not None and language != one.language:
            continue
        parts = (
            one.idea,
            one.category,
            one.transformation,
            one.note,
            one.problem,
            one.session,
            one.proposer,
            one.source,
        )
        text = "\n".join(parts).casefold()
        if all(word in text for word in wanted):
            yield one


def best_for(
    library: Library, spec: ProblemSpec, languages: Collection[Language], device: DeviceFact, count: int
) -> list[tuple[SavedKernel, str]]:
    """Choose up to ``count`` kernels for a warm start of ``spec``, each with the reason for the choice.

    A kernel qualifies if it is for the same problem and in one of ``languages``. The result contains each source only
    once. Kernels from the same type of device come first, sorted by time. Kernels from other devices follow, sorted by
    speedup.
    """
    key = problem_key(spec)
    fitting = [one for one in library.kernels if one.key == key and one.language in languages]
    fitting.sort(key=lambda one: (False, one.ms) if one.device == device.name else (True, -one.speedup))
    chosen: list[tuple[SavedKernel, str]] = []
    for one in fitting:
        if len(chosen) < count and one.digest not in {other.digest for other, _ in chosen}:
            rank = len(chosen) + 1
            place = "the fastest" if rank == 1 else f"number {rank}"
            same = [other for other in fitting if (other.device == device.name) == (one.device == device.name)]
            where = "on this type of device" if one.device == device.name else f"on {one.device}, another device"
            chosen.append((one, f"{place} of {len(same)} kernels for the same problem {where}: {_figures(one)}"))
    return chosen


def _figures(one: SavedKernel) -> str:
    ms = f"{one.ms:.3g} ms" if one.ms < 100 else f"{one.ms:.0f} ms"
    return f"{ms}, {marked(speedup(one.speedup), one.uncertain)} over eager"


def _kernels_of(reader: SessionReader, state: SessionState) -> Iterator[SavedKernel]:
    tolerance = tolerance_of(state.config, reader.text)
    for problem in state.problems.values():
        leaders = state.leaders(problem.id)
        if not leaders:
            continue
        key = problem_key(problem.spec)
        for variant in leaders:
            verdict, idea = variant.verdict, state.ideas.get(variant.idea)
            figures = figures_of(state, variant)
            if verdict is None or variant.kernel_ms is None or figures is None:
                continue
            yield SavedKernel(
                session=reader.paths.name,
                directory=reader.paths.directory,
                variant=variant.id,
                problem=problem.id,
                key=key,
                language=variant.language,
                device=verdict.device,
                ms=figures.ms,
                speedup=figures.speedup,
                speedup_low=verdict.speedup_low if not figures.scaled else None,
                speedup_high=verdict.speedup_high if not figures.scaled else None,
                uncertain=figures.uncertain,
                scaled=figures.scaled,
                tolerance=tolerance,
                category=idea.category if idea is not None else "other",
                transformation=idea.transformation if idea is not None else "",
                idea=idea.text if idea is not None else "",
                note=variant.note,
                proposer=variant.proposer,
                data=variant.data,
                digest=variant.source,
                source=reader.text(variant.source),
                at=variant.judged_at or 0.0,
                best=problem.best == variant.id,
            )
