"""Command: search many problems, each with its own time budget, and report the results as a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.exit_codes import ExitCode
from tui.cli.search.watch import Beginning, start_and_watch, watch_options
from tui.cli.shared.common import Failure, FiniteAbove0, Integer, cannot_write, complete_session, find, sessions_option
from tui.console.echo import echo

if TYPE_CHECKING:
    from engine.config.schema import Config
    from engine.session.state.session_state import SessionState
    from engine.session.store import SessionPaths

ROUNDS = 1000
"""Rounds per problem without --config. The number is so high that the minutes run out first in every search."""
DEFAULT_CONFIG = f"""\
[search]
rounds = {ROUNDS}
"""


def _checked(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Validate ``--name`` or ``--device`` as in a config, so that the error names the option."""
    if value is None:
        return None
    from pydantic_core import PydanticCustomError

    from engine.config.values import device_names, session_name

    try:
        session_name(value) if parameter.name == "name" else device_names(_names(value))
    except PydanticCustomError as error:
        raise click.BadParameter(error.message()) from None
    return value


def _names(devices: str) -> str | list[str]:
    """Return the value of ``--device`` as in a config: one name, or a list of names."""
    names = [one.strip() for one in devices.split(",")]
    return names if len(names) > 1 else names[0]


@click.command()
@click.argument("entries", metavar="[PATHS]...", nargs=-1)
@click.option("--sample", type=Integer(min=1), help="Number of problems to choose at random.")
@click.option("--seed", type=Integer(min=0), help="Random seed of --sample and of the search.  [default: 0]")
@click.option("--minutes-per-problem", "minutes", type=FiniteAbove0(), help="Engine time for each problem, in minutes.")
@click.option(
    "--dollars-per-problem", "dollars", type=FiniteAbove0(), help="Limit on model costs per problem, in dollars."
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Config with models, search and evaluation settings. The benchmark ignores the config's problems and minutes.",
)
@click.option("--device", callback=_checked, help="One or more devices, separated by commas, such as cpu or cuda:0.")
@click.option("--name", callback=_checked, help="The session's name.  [default: bench, or the name in --config]")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the report.  [default: report/ in the session's directory; none for a packed session]",
)
@click.option("--resume", metavar="SESSION", shell_complete=complete_session, help="Resume this benchmark.")
@click.option("--report", metavar="SESSION", shell_complete=complete_session, help="Only write this session's report.")
@click.option("--new", is_flag=True, help="Start a new session even if this benchmark already has one.")
@sessions_option
@watch_options
def bench(
    entries: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    minutes: float | None,
    dollars: float | None,
    config_path: Path | None,
    device: str | None,
    name: str | None,
    output: Path | None,
    resume: str | None,
    report: str | None,
    new: bool,
    root: Path,
    headless: bool,
    as_json: bool,
) -> int:
    """Search many problems, and report the speedups over PyTorch.

    fast_p is the share of problems whose best kernel is correct, with a 95% speedup interval entirely above p.

    PATHS are files, globs, directories or builtin:NAME. The search works on one problem at a time. Minutes that a
    problem does not need go to problems that can still improve. At the end, the command writes report.json, report.md
    and report.html.

    To resume an interrupted or killed search, type the same command again. If the search is complete, the command only
    writes the report.
    """
    own = {
        "PATHS": entries,
        "--sample": sample,
        "--seed": seed,
        "--minutes-per-problem": minutes,
        "--dollars-per-problem": dollars,
        "--config": config_path,
        "--device": device,
        "--name": name,
        "--new": new,
    }
    if (stored := report or resume) is not None:
        if given := [key for key, value in own.items() if value] or (["--resume"] if report and resume else []):
            raise click.UsageError(f"{'--report' if report else '--resume'} and {given[0]} cannot be combined")
        paths = find(root, stored)
        if report is not None:
            return _write(paths, output)
        return _search(paths, output, headless=headless, as_json=as_json)
    if entries and minutes is None:
        from engine.problem.catalog import resolve

        resolve(entries, Path.cwd())  # A missing file is the error to correct first.
        raise click.UsageError("add --minutes-per-problem")
    if not entries or minutes is None:
        raise click.UsageError("specify PATHS and --minutes-per-problem, or a session with --resume or --report")
    config = _config(entries, sample, seed, minutes, dollars, config_path, device, name)
    return _search(_session(config, root, new=new), output, headless=headless, as_json=as_json)


def _config(
    entries: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    minutes: float,
    dollars: float | None,
    config_path: Path | None,
    device: str | None,
    name: str | None,
) -> Config:
    """Return the benchmark's config. Raises ConfigError, CatalogError, ProposerUnavailable."""
    import random

    import tomli_w

    from engine.config.schema import load_text, parse_config
    from engine.config.toml_table import toml_table
    from engine.problem.catalog import resolve
    from engine.proposers.registry import check_providers

    place = config_path if config_path is not None else Path("bench.toml")
    text = load_text(config_path) if config_path is not None else DEFAULT_CONFIG
    parse_config(text, place, needs_problems=False)  # Errors then name the lines of the user's file.
    table = toml_table(text)
    seed = seed if seed is not None else table.get("seed", 0)
    files = resolve(entries, Path.cwd())
    if sample is not None and sample < len(files):
        chosen = random.Random(seed).sample(range(len(files)), sample)
        files = [files[index] for index in sorted(chosen)]
    table["problems"] = [str(file.path) for file in files]
    table["seed"] = seed
    table["name"] = name or table.get("name", "bench")
    budget = table.setdefault("budget", {})
    budget.pop("minutes", None)
    budget["minutes_per_problem"] = minutes
    if dollars is not None:
        budget.setdefault("per_problem", {})["dollars"] = dollars
    if device is not None:
        table.setdefault("evaluation", {})["device"] = _names(device)
    config = parse_config(tomli_w.dumps(table), place)
    check_providers(config)
    return config


def _session(config: Config, root: Path, *, new: bool) -> SessionPaths:
    """Return the newest session of the same benchmark, or create one. Raises SessionError."""
    from engine.session.store import create_session

    if not new and (found := _same(config, root)) is not None:
        return found
    return create_session(root, config.name, config.frozen_toml(), str(config.path), config.seed)


def _same(config: Config, root: Path) -> SessionPaths | None:
    """Return the newest session of the same benchmark, even if its problem files have moved, or None."""
    from engine.config.differences import differences
    from engine.config.schema import ConfigError, load_config
    from engine.session.store import SessionPaths, is_bundled

    configs = sorted(root.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, reverse=True)
    for paths in (SessionPaths.at(file.parent) for file in configs):
        if not paths.exists or is_bundled(paths):
            continue
        try:
            stored = load_config(paths.config)
        except ConfigError:
            continue
        alike = {"sessions": config.sessions, "problems": config.problems}
        if differences(stored.model_copy(update=alike), config):
            continue
        if stored.problems == config.problems or _are_moved(paths, stored, config):
            return paths
    return None


def _are_moved(paths: SessionPaths, stored: Config, config: Config) -> bool:
    """Return whether the problem files have only moved: same names, and the same sources as in the session."""
    from engine.session.state.session_state import fold
    from engine.session.store import SessionError, SessionReader
    from engine.system.text_file import read_text

    now = [Path(file) for file in config.problems]
    if [Path(file).name for file in stored.problems] != [file.name for file in now]:
        return False
    try:
        with SessionReader(paths) as reader:
            state = fold(reader.read())
    except SessionError:  # A damaged session must not stop this benchmark.
        return False
    sources = {problem.spec.path: problem.spec.source for problem in state.problems.values()}
    pairs = zip(map(str, stored.problems), now, strict=True)
    return bool(sources) and all(sources[before] == read_text(file) for before, file in pairs if before in sources)


def _search(paths: SessionPaths, output: Path | None, *, headless: bool, as_json: bool) -> int:
    """Search until the benchmark is complete. If the benchmark is already complete, only write the report."""
    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader, engine_liveness
    from tui.view.source import argument_of

    with SessionReader(paths) as reader:
        state = fold(reader.read())
    running = engine_liveness(paths).running
    if state.finished and not running:
        echo(f"{paths.name} is complete; add --new to search again", err=True)
        return _write(paths, output)
    if not _is_benchmark(paths, state):
        again = f"kernel-tui resume {argument_of(paths)}"
        raise Failure(f"{paths.name} is not a benchmark; to resume it: {again}", ExitCode.USAGE)
    if state.starts:
        phases = list(state.phases().values())
        echo(f"{paths.name}: continuing; {phases.count('done')} of {len(phases)} problems are done", err=True)
    beginning = Beginning(paths.directory, starts=not running, seq=state.seq if state.starts else 0)
    code = start_and_watch(lambda: beginning, headless=headless, as_json=as_json, detach=False, until_idle=False)
    _write(paths, output, quiet=as_json)
    return code


def _is_benchmark(paths: SessionPaths, state: SessionState) -> bool:
    """Return whether the session's recorded config sets the minutes per problem. Raises SessionError."""
    from engine.config.toml_table import toml_table
    from engine.session.store import SessionReader

    if not state.config:
        return True
    with SessionReader(paths) as reader:
        budget = toml_table(reader.text(state.config)).get("budget", {})
    return "minutes_per_problem" in budget


_DROPPED_OF_TOTALS = ("problems", "median", "fast_1.5", "geomean")
"""Columns to omit on a narrow terminal, in this order. The report's files have all columns."""


def _write(paths: SessionPaths, output: Path | None, *, quiet: bool = False) -> int:
    """Write the report's files. Unless ``quiet``, print the files' paths and the totals.

    For a packed or bundled session without ``output``, the function prints the totals but does not write files. Raises
    SessionError, Failure.
    """
    from engine.session.store import is_bundled
    from tui.bench.files import write_report
    from tui.bench.report import read_report
    from tui.bench.tables import RULES, facts, totals
    from tui.console.tables import columns, console, drop_columns
    from tui.view.source import argument_of

    report = read_report(paths)
    if not report.problems:
        again = f"kernel-tui bench --resume {argument_of(paths)}"
        raise Failure(f"{paths.name}: no problem is open yet; continue with: {again}")
    directory, files = output or paths.directory / "report", list[Path]()
    if output is not None or not (paths.is_packed or is_bundled(paths)):
        try:
            files = write_report(report, directory)
        except OSError as error:
            raise cannot_write(directory, error) from None
    if quiet:
        return int(ExitCode.OK)
    out = console(err=True)
    for line in facts(report):
        out.print(line)
    grid = totals(report)
    table = columns(*grid.head, right=sorted(grid.right))
    for row in grid.rows:
        table.add_row(*row)
    shown = drop_columns(out, table, _DROPPED_OF_TOTALS)
    out.print(shown)
    if hidden := [name for name in grid.head if name not in [column.header for column in shown.columns]]:
        out.print(f"Columns that do not fit this terminal: {', '.join(hidden)}.")
    out.print(RULES)
    for file in files:
        echo(str(file))
    if not files:
        echo("To write the whole report, add: --output DIRECTORY", err=True)
    return int(ExitCode.OK)
