"""Command: export kernels as solutions, wheels, programs or sources, and sessions as data, reports or packed copies."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from engine.exit_codes import ExitCode
from engine.problem.spec import MODULES, Language, ProblemSpec, suffix_of
from engine.suggestions import did_you_mean
from tui.cli.shared.common import (
    Failure,
    cannot_write,
    checked_arch,
    count,
    find,
    force_option,
    refuse_existing,
    run_async,
    sessions_option,
)
from tui.cli.shared.completion import complete_kernel, complete_session_or_file
from tui.cli.shared.kernel_file import inspect_problem, language_of, problem_line, read_kernel
from tui.console.echo import echo
from tui.console.progress_line import working

if TYPE_CHECKING:
    from engine.config.tolerance import SessionTolerance
    from engine.session.state.session_state import SessionState, VariantState
    from engine.session.store import SessionPaths, SessionReader

DEFAULT_ARCH = "sm_90a"
"""GPU architecture if neither ``--arch`` nor the session names one."""


class Chosen(Struct, frozen=True):
    """A kernel to export.

    ``about`` is a line about the kernel's origin. ``arch`` is a GPU architecture. ``judged_ms`` is the kernel's time.
    """

    problem: ProblemSpec
    language: Language
    source: str
    about: str
    arch: str
    tolerance: SessionTolerance
    judged_ms: float | None = None


@click.command()
@click.argument("source", shell_complete=complete_session_or_file)
@click.argument("variants", metavar="[VARIANT]...", nargs=-1, shell_complete=complete_kernel)
@click.option("--best", metavar="PROBLEM", multiple=True, help="Export the best kernel of this problem.")
@click.option("--problem", metavar="P", help="Problem of a kernel file: a .py file or a built-in problem.")
@click.option("--package", metavar="NAME", help="Write a wheel whose operators run the kernels without a compiler.")
@click.option(
    "--backward",
    metavar="A=B",
    multiple=True,
    help="In a package, the kernel of problem B computes the gradients of problem A.",
)
@click.option("--standalone", is_flag=True, help="Write a program that runs, checks and times the kernel.")
@click.option("--arch", callback=checked_arch, help="GPU architecture of a package.  [default: the session's]")
@click.option(
    "--training", metavar="FILE", help="Write every judged kernel with its idea, parent and verdict, as JSON lines."
)
@click.option("--report", metavar="FILE", help="Write a Markdown report of the whole search.")
@click.option(
    "--sources",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Write the source of each problem's best kernel, one file each.",
)
@click.option(
    "--packed",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Write a compressed copy of the session, which every command can read.",
)
@click.option(
    "--relative-to",
    metavar="DIRECTORY",
    multiple=True,
    type=click.Path(path_type=Path),
    help="In a packed copy, record paths below this directory as relative paths. Repeatable.",
)
@click.option(
    "-o", "--output", metavar="PATH", help="File for the solution or program, or directory for the wheel.  [default: "
    "standard output, or the current directory for a wheel]",
)  # fmt: skip
@force_option
@sessions_option
def export(
    source: str,
    variants: tuple[str, ...],
    best: tuple[str, ...],
    problem: str | None,
    package: str | None,
    backward: tuple[str, ...],
    standalone: bool,
    arch: str | None,
    training: str | None,
    report: str | None,
    sources: Path | None,
    packed: Path | None,
    relative_to: tuple[Path, ...],
    output: str | None,
    force: bool,
    root: Path,
) -> None:
    """Export kernels, training data, a report or a whole session.

    SOURCE is a session or a kernel file:

    \b
    kernel-tui export SESSION VARIANT
    kernel-tui export SESSION --best PROBLEM
    kernel-tui export KERNEL --problem P

    VARIANT is a kernel, such as v34. A wheel may contain several kernels. Without --package or --standalone, the
    command exports a kernel as a KernelBench solution. To an output named *.cpp or *.cu, it writes the kernel's source.
    FILE "-" is standard output.
    """
    given = {
        "VARIANT": variants,
        "--best": best,
        "--training": training,
        "--report": report,
        "--sources": sources,
        "--packed": packed,
    }
    wanted = [name for name, value in given.items() if value]
    if package is not None and standalone:
        raise Failure("--package and --standalone write different files; give only one of them", ExitCode.USAGE)
    if backward and package is None:
        raise Failure("--backward requires --package NAME", ExitCode.USAGE)
    if relative_to and packed is None:
        raise Failure("--relative-to requires --packed DIRECTORY", ExitCode.USAGE)
    if (to_file := training or report or sources or packed) and (output or package or standalone):
        contrary = "--output" if output else "--package" if package else "--standalone"
        raise Failure(f"omit {contrary}: the export goes to {to_file}", ExitCode.USAGE)
    writes_file = package is None and sources is None and packed is None
    if writes_file and (file := training or report or output) is not None:
        refuse_existing(file, force=force)
    if problem is not None:
        if wanted:
            raise Failure(
                f"--problem applies to a kernel file, {wanted[0]} to a session; give only one of them", ExitCode.USAGE
            )
        _refuse_session(root, source, problem)
        chosen = [_of_file(Path(source), problem, arch or DEFAULT_ARCH)]
        _export(chosen, package, backward, standalone, output, force=force)
        return
    if package is not None and wanted and {*wanted} <= {"VARIANT", "--best"}:
        wanted = wanted[:1]
    if len(wanted) != 1 or (package is None and len(variants) + len(best) > 1):
        session = "VARIANT, --best PROBLEM, --training FILE, --report FILE, --sources DIRECTORY or --packed DIRECTORY"
        raise Failure(f"give {session}; for a kernel file, give --problem P", ExitCode.USAGE)
    if packed is not None:
        _write_packed(find(root, source), packed, relative_to)
        return

    from engine.session.state.session_state import fold
    from engine.session.store import SessionReader

    paths = find(root, source)
    with SessionReader(paths) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        state.name = paths.name  # The config's name can be that of several directories: demo, demo-2.
        if training is not None:
            from engine.export.training import encode, records

            _write(training, (encode(record) for record in records(state, reader.text)))
        elif report is not None:
            from engine.export.report import report as written

            _write(report, [written(state, reader.text).encode()])
        elif sources is not None:
            _write_sources(state, reader, sources, force=force)
        else:
            names = [*variants, *(_best_of(state, one) for one in best)]
            chosen = [_of_session(reader, state, name, arch) for name in names]
            _export(chosen, package, backward, standalone, output, force=force)


def _write_sources(state: SessionState, reader: SessionReader, directory: Path, *, force: bool) -> None:
    bests = [state.variants[one.best] for one in state.problems.values() if one.best is not None]
    if not bests:
        raise Failure(f"{state.name}: no correct kernel yet", ExitCode.NOTHING_CORRECT)
    files = {
        # ``.name`` keeps the file in the directory, whatever the problem's name.
        directory / Path(f"{best.problem}{suffix_of(best.language)}").name: best.source
        for best in bests
    }
    for file in files:
        refuse_existing(file, force=force)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, source in files.items():
            file.write_text(reader.text(source), encoding="utf-8")
    except OSError as error:
        raise cannot_write(directory, error) from None
    echo(f"wrote {count(len(bests), 'kernel')} to {directory}", err=True)


def _write_packed(paths: SessionPaths, target: Path, relative_to: Sequence[Path]) -> None:
    from engine.session.store import pack_session
    from tui.text.format import size

    before = paths.packed if paths.is_packed else paths.database
    from_bytes = before.stat().st_size
    with contextlib.suppress(FileNotFoundError):  # The -wal file exists only while the session is open.
        from_bytes += before.with_name(f"{before.name}-wal").stat().st_size
    with working("packing the session"):
        after = pack_session(paths, target, relative_to).packed
    echo(f"wrote {target}: {after.name} ({size(after.stat().st_size)}), "
         f"packed from {before.name} of {paths.name} ({size(from_bytes)})", err=True)  # fmt: skip


def _export(
    chosen: Sequence[Chosen],
    package: str | None,
    backward: Sequence[str],
    standalone: bool,
    output: str | None,
    *,
    force: bool,
) -> None:
    from engine.export import ExportError

    try:
        if package is not None:
            _write_package(chosen, package, backward, Path(output or "."), force=force)
        elif standalone:
            file = output or _standard_output(f"{chosen[0].problem.id}.{chosen[0].language}")
            _write_program(chosen[0], file)
        else:
            file = output or _standard_output(f"{chosen[0].problem.id}_new.py")
            _write(file, [(chosen[0].source if _is_source(file, chosen[0]) else _solution(chosen[0])).encode()])
    except ExportError as error:
        raise Failure(str(error)) from None


def _is_source(file: str, kernel: Chosen) -> bool:
    """Return whether ``file`` has the suffix of the kernel's source.

    Raises Failure for the suffix of another language.
    """
    suffix, own = Path(file).suffix, suffix_of(kernel.language)
    if suffix not in (".cpp", ".cu"):
        return False
    if suffix != own:
        proposed = Path(file).with_suffix(own)
        raise Failure(
            f"{file}: the kernel's source is a {own} file; use --output {shlex.quote(str(proposed))}", ExitCode.USAGE
        )
    return True


def _best_of(state: SessionState, problem: str) -> str:
    if (found := state.problems.get(problem)) is None:
        near, there = did_you_mean(problem, state.problems), ", ".join(state.problems) or "none"
        lacks = f"no problem {problem}{f'{near} Problems:' if near else '; problems:'} {there}"
        raise Failure(f"{state.name}: {lacks}" if state.name else lacks, ExitCode.USAGE)
    if found.best is None:
        raise Failure(f"{state.name}: no correct kernel for {problem} yet", ExitCode.NOTHING_CORRECT)
    return found.best


def _of_session(reader: SessionReader, state: SessionState, variant: str, arch: str | None) -> Chosen:
    from engine.config.tolerance import tolerance_of

    if (kernel := state.variants.get(variant)) is None:
        near = did_you_mean(variant, state.variants)
        raise Failure(f"{state.name}: no kernel {variant}{near}", ExitCode.USAGE)
    tolerance, verdict = tolerance_of(state.config, reader.text), kernel.verdict
    if verdict is None or not verdict.correct:
        result = "has no verdict" if verdict is None else f"is not correct ({verdict.status.replace('_', ' ')})"
        echo(f"warning: {kernel.id} {result}", err=True)
    archs = [one.arch for one in state.devices.values() if one.kind == "cuda"]
    return Chosen(
        state.problems[kernel.problem].spec,
        kernel.language,
        reader.text(kernel.source),
        _about(state, kernel, tolerance),
        arch or (archs[0] if archs else DEFAULT_ARCH),
        tolerance,
        kernel.kernel_ms,
    )


def _about(state: SessionState, kernel: VariantState, tolerance: SessionTolerance) -> str:
    from engine.config.tolerance import short_caption
    from engine.session.records.speedup_text import marked
    from engine.session.records.verdict_text import is_uncertain

    about, verdict = f"Kernel {kernel.id} of session {state.name}", kernel.verdict
    if verdict is not None and verdict.speedup is not None:
        speedup = marked(f"{verdict.speedup:.3g}", is_uncertain(verdict))
        about += f": speedup {speedup}x over eager PyTorch on {verdict.device}"
        between = ""
        if verdict.speedup_low is not None and verdict.speedup_high is not None:
            between = f"95%: {verdict.speedup_low:.3g} to {verdict.speedup_high:.3g}; "
        about += f" ({between}{short_caption(tolerance)})"
    elif verdict is not None:
        about += f"; verdict: {verdict.status.replace('_', ' ')}"
    return about + "."


def _refuse_session(root: Path, source: str, problem: str) -> None:
    """Raise Failure if ``source`` is a session, to which ``--problem`` does not apply."""
    from engine.session.store import SessionError
    from tui.view.source import argument_of

    with contextlib.suppress(SessionError):
        paths = find(root, source)
        raise Failure(
            f"{source} is a session, and --problem applies to a kernel file; to export the problem's best kernel: "
            f"kernel-tui export {argument_of(paths)} --best {shlex.quote(Path(problem).stem)}",
            ExitCode.USAGE,
        )


def _of_file(path: Path, problem: str, arch: str) -> Chosen:
    from engine.config.tolerance import DEFAULT

    language, text = language_of(path), read_kernel(path)
    with working("inspecting the problem"):
        spec = run_async(inspect_problem(problem))
    return Chosen(spec, language, text, f"From {path.name}.", arch, DEFAULT)


def _solution(one: Chosen) -> str:
    from engine.export.kernelbench import solution
    from engine.problem.catalog import reference_of

    reference = reference_of(Path(one.problem.path))
    named = "" if Path(reference).is_absolute() else f"\n{problem_line(reference)}"
    return solution(one.problem, one.language, one.source, f"{one.about}{named}")


def _write_program(one: Chosen, file: str) -> None:
    from engine.export import ExportError
    from engine.export.standalone.program import compile_command, program
    from engine.export.standalone.reference import expected_of

    if one.language in MODULES or one.problem.c_refusal is not None:
        raise ExportError(f"{one.problem.id}: --standalone needs a .cpp or .cu kernel")
    own, printed = suffix_of(one.language), file == "-"
    if not printed and Path(file).suffix != own:
        proposed = shlex.quote(str(Path(file).with_suffix(own)))
        raise Failure(f"{file}: the program is a {own} file; use --output {proposed}", ExitCode.USAGE)
    with working("running the reference"):
        expected = expected_of(one.problem)
    text = program(
        one.problem, one.language, one.source, expected, about=one.about, arch=one.arch,
        tolerance=one.tolerance, judged_ms=one.judged_ms, file_name="" if printed else Path(file).name,
    )  # fmt: skip
    _write(file, [text.encode()])
    if not printed:
        echo(f"compile and run: {compile_command(one.language, one.arch, Path(file))}", err=True)


def _write_package(
    chosen: Sequence[Chosen], package: str, backward: Sequence[str], directory: Path, *, force: bool
) -> None:
    import shutil
    import tempfile

    from engine.export import ExportError
    from engine.export.package.build import built_library, processor_features, write_wheel
    from engine.export.package.tree import PackagedKernel, check_name, check_problem, package_tree

    try:
        check_name(package)
    except ExportError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    gradients = _gradients(backward, [one.problem.id for one in chosen])
    kernels = []
    with working("compiling") as work:
        for one in chosen:
            check_problem(one.problem, one.language)
            work.say(f"compiling {one.problem.id}")
            on_gpu = one.language == "cu"
            library = run_async(built_library(one.problem, one.language, one.source, one.arch if on_gpu else ""))
            kernels.append(
                PackagedKernel(
                    one.problem,
                    one.language,
                    one.source,
                    one.about,
                    library,
                    arch=one.arch if on_gpu else "",
                    features=frozenset() if on_gpu else processor_features(),
                    backward=gradients.get(one.problem.id, ""),
                )
            )
        tree = package_tree(package, kernels)
        work.say("packing the wheel")
        # Setuptools would replace existing files.
        with tempfile.TemporaryDirectory(prefix="kernel-tui-wheel-") as scratch:
            wheel = write_wheel(tree, Path(scratch))
            target = directory / wheel.name
            refuse_existing(target, force=force)
            try:
                directory.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(wheel, target)
            except OSError as error:
                raise cannot_write(target, error) from None
    echo(f"wrote {target}", err=True)


def _gradients(backward: Sequence[str], problems: Sequence[str]) -> dict[str, str]:
    """Parse ``A=B`` options: the kernel of problem B computes the gradients of problem A. Raises Failure."""
    found = {}
    for one in backward:
        forward, _, gradient = one.partition("=")
        if lacking := [name for name in (forward, gradient) if name not in problems]:
            there = ", ".join(problems)
            raise Failure(
                f"--backward {one}: the package has no kernel of {lacking[0] or 'B'}; its problems: {there}",
                ExitCode.USAGE,
            )
        found[forward] = gradient
    for forward in found:
        chain, following = [forward], found.get(forward)
        while following is not None and following not in chain:
            chain.append(following)
            following = found.get(following)
        if following is not None:
            whose = "its own gradients" if len(chain) == 1 else f"gradients in a circle ({', '.join(chain)})"
            raise Failure(f"--backward {forward}={found[forward]}: {forward} would compute {whose}", ExitCode.USAGE)
    return found


def _standard_output(file: str) -> str:
    """Return "-" if standard output is a file or a pipe. Raises Failure on a terminal."""
    if sys.stdout.isatty():
        raise Failure(f"give a file: --output {file}; to print it here: --output -", ExitCode.USAGE)
    return "-"


def _write(place: str, parts: Iterable[bytes]) -> None:
    if place == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    try:
        with Path(place).open("wb") as file:
            for part in parts:
                file.write(part)
    except OSError as error:
        raise cannot_write(place, error) from None
    echo(f"wrote {place}", err=True)
