"""Compute the figures for comparing sessions: results, verdicts, cost, proposers and configuration."""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from engine.config.renamed_keys import with_new_names
from engine.config.tolerance import SessionTolerance, canonical, tolerance_in
from engine.config.toml_table import toml_table
from engine.problem.spec import Language
from engine.session.budget import elapsed_s
from engine.session.records.verdict import UNJUDGED
from engine.session.state.session_state import ProblemState, SessionState, VariantState
from engine.session.store import SessionPaths, SessionReader, engine_liveness, stopped_words
from tui.view.results import ResultRow, results_of

NOT_NEEDED = ("variant_stage", "log_line", "command_handled")
LIMITS = ("minutes", "rounds", "dollars", "tokens", "calls")


class ProblemFigures(Struct, frozen=True, kw_only=True):
    """A problem's figures.

    ``judged`` counts the verdicts, excluding failed evaluations. ``built`` counts the kernels that compile. ``author``
    and ``language`` describe the best kernel. ``identity`` is a digest of the reference and the shapes. Speedups are
    comparable only between problems with equal identities.
    """

    result: ResultRow
    judged: int
    built: int
    author: str
    language: Language
    identity: str


class SessionFigures(Struct, frozen=True, kw_only=True):
    """A session's figures.

    ``state`` is the state's name, as the session list shows it. ``created`` is in Unix seconds, and
    ``seconds`` is the search time. ``statuses`` counts verdicts by status, and ``proposers`` counts kernels by
    proposer. ``dollars`` is the known cost. ``unpriced`` counts replies without a known price, and ``uncertain`` counts
    attempts without a reported cost. Correct kernels meet ``tolerance``. ``config`` maps dotted keys to
    values.
    """

    name: str
    directory: str
    state: str
    created: float
    version: str
    seconds: float
    verdicts: int
    judged: int
    built: int
    correct: int
    statuses: dict[str, int]
    calls: int
    tokens: int
    dollars: float
    unpriced: int
    uncertain: int
    proposers: dict[str, int]
    devices: tuple[str, ...]
    problems: tuple[ProblemFigures, ...]
    tolerance: SessionTolerance
    config: dict[str, str]


class FollowedSession:
    """A session whose ``figures`` follow a running search. Reads only new events. Thread-safe.

    All methods except ``close`` raise SessionError.
    """

    def __init__(self, paths: SessionPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._reader: SessionReader | None = SessionReader(paths)
        self._state = SessionState()
        self._config = ""
        self._running = False
        self._figures: SessionFigures | None = None
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    @property
    def figures(self) -> SessionFigures:
        """The figures as of the last ``refresh``."""
        assert self._figures is not None, "the constructor reads the figures"
        return self._figures

    def refresh(self) -> bool:
        """Apply new events. Return whether the figures changed."""
        with self._lock:
            reader, state = self._reader, self._state
            if reader is None:
                return False
            # Check the engine before reading, so that no event from its last moments is missed.
            running = engine_liveness(self._paths, reader).running
            seq = state.seq
            for recorded in reader.read(seq, without=NOT_NEEDED) if reader.changed() else ():
                state.apply(recorded)
            if not self._config and state.config:
                self._config = reader.text(state.config)
            now = reader.engine_now() if running else reader.last_moment(state)
            if self._figures is None or seq != state.seq or running != self._running:
                directory = self._paths.directory
                self._figures = figures_of(state, directory, self._config, running=running, now=now)
            elif running:
                self._figures = structs.replace(self._figures, seconds=elapsed_s(state, now))
            else:
                return False
            self._running = running
            return True

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            self._reader = None


def read_figures(paths: SessionPaths) -> SessionFigures:
    """Return a session's current figures. Raises SessionError."""
    session = FollowedSession(paths)
    session.close()
    return session.figures


def figures_of(state: SessionState, directory: Path, config: str, *, running: bool, now: float) -> SessionFigures:
    """Compute a session's figures.

    ``config`` is the session's configuration, as TOML. The search time ends at ``now`` (Unix seconds).
    """
    results = results_of(state, directory, elapsed_s(state, now))
    problems = tuple(
        _problem(state, state.problems[row.problem], row) for row in results.problems if row.problem in state.problems
    )
    judged = [one for one in state.variants.values() if one.verdict is not None]
    spend = state.spending.total
    engine = state.engine
    if running:
        word = "paused" if state.paused else "running"
    elif engine is None:
        word = "never ran"
    else:
        word = stopped_words(engine.stopped) if engine.stopped is not None else "died"
    return SessionFigures(
        name=directory.name,  # The session's config can have another name.
        directory=str(directory),
        state=word,
        created=state.created_at,
        version=engine.version if engine is not None else state.version,
        seconds=results.seconds,
        verdicts=sum(row.verdicts for row in results.problems),
        judged=sum(_judged(one) for one in judged),
        built=sum(_built(one) for one in judged),
        correct=sum(one.correct for one in judged),
        statuses=dict(Counter(one.verdict.status for one in judged if one.verdict is not None).most_common()),
        calls=spend.calls,
        tokens=spend.tokens,
        dollars=spend.dollars,
        unpriced=spend.unpriced,
        uncertain=spend.uncertain,
        proposers=dict(Counter(one.proposer for one in state.variants.values()).most_common()),
        devices=tuple(sorted({device.name for device in state.devices.values()})),
        problems=problems,
        tolerance=tolerance_in(config),
        config=_config(config, state),
    )


def _problem(state: SessionState, problem: ProblemState, row: ResultRow) -> ProblemFigures:
    judged = [one for one in state.variants_of(problem.id) if one.verdict is not None]
    best = state.variants.get(problem.best) if problem.best is not None else None
    spec = problem.spec
    shapes = ";".join(f"{one.name} {one.dtype} {one.shape}" for one in spec.tensors)
    return ProblemFigures(
        result=row,
        judged=sum(_judged(one) for one in judged),
        built=sum(_built(one) for one in judged),
        author=best.proposer if best is not None else "",
        language=best.language if best is not None else problem.language,
        identity=hashlib.sha256(f"{spec.source}\n{shapes}".encode()).hexdigest(),
    )


def _judged(variant: VariantState) -> bool:
    return variant.verdict is not None and variant.verdict.status not in UNJUDGED


def _built(variant: VariantState) -> bool:
    return _judged(variant) and variant.verdict is not None and variant.verdict.status != "build_error"


def _config(text: str, state: SessionState) -> dict[str, str]:
    """Return configuration values by dotted key, with the limits that the user changed during the session."""
    try:
        found = dict(_flat(with_new_names(toml_table(text))[0]))
    except tomllib.TOMLDecodeError:
        found = {}
    # Show the tolerance under its current name.
    if (tolerance := canonical(found.get("evaluation.tolerance"))) is not None:
        found["evaluation.tolerance"] = str(tolerance)
    for name in LIMITS:
        if (value := getattr(state, name)) is not None:
            found["search.rounds" if name == "rounds" else f"budget.{name}"] = f"{_shown(value)} (by hand)"
    return found


def _flat(table: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            for number, one in enumerate(value, 1):
                yield from _flat(one if isinstance(one, dict) else {"": one}, f"{name}[{number}].")
        else:
            yield name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(one) for one in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
