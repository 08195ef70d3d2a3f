"""README and docs promise what exists: kernels build, commands and exit codes are the program's, links lead on."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import click
import pytest

from engine.evaluation.build import build
from engine.exit_codes import ExitCode
from engine.problem.catalog import inspect_files, resolve
from engine.problem.header import derive_header
from engine.problem.spec import Form, ProblemSpec
from engine.session import SessionPaths, SessionReader
from engine.state import fold
from tui.cli import COMMANDS, cli
from tui.format import milliseconds
from tui.results import results_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


@pytest.mark.parametrize(
    ("fence", "form", "problem"),
    [("cpp", "cpp", "quickstart/rmsnorm"), pytest.param("cuda", "cu", "quickstart/gelu", marks=NVCC)],
)
def test_the_example_kernels_build(fence: str, form: Form, problem: str, tmp_path: Path) -> None:
    example = re.search(rf"```{fence}\n(.*?)```", README, re.DOTALL)
    assert example is not None
    (spec,) = asyncio.run(inspect_files(resolve([f"builtin:{problem}"], ROOT)))
    assert isinstance(spec, ProblemSpec)
    library, report = asyncio.run(build(example[1], form, derive_header(spec, form), "sm_90a", tmp_path))
    assert library is not None, report.log


def test_every_command_is_listed_and_every_listed_command_exists() -> None:
    shell = set(re.findall(r"kernel-tui ([a-z-]+)(?![\w.-])", README))
    cells = [
        cell for row in re.findall(r"(?m)^\| (`kernel-tui .*?) \|", README) for cell in re.findall(r"`([^`]+)`", row)
    ]
    listed = shell | {cell.removeprefix("kernel-tui ").split()[0] for cell in cells if not cell.endswith(".toml")}
    assert listed - {"config.toml"} == set(COMMANDS)


def test_options_that_the_readme_names_exist() -> None:
    for name, rest in re.findall(r"`kernel-tui ([a-z-]+) ([^`]*)`", README):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) - known - {"--help"} == set(), name


def test_exit_codes_are_those_of_the_program() -> None:
    table = README.split("## Exit codes")[1].split("## ")[0]
    assert {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", table)} == {int(code) for code in ExitCode}
    assert isinstance(cli, click.Group)


def test_the_figures_of_the_example_session_are_those_that_show_prints() -> None:
    paths = SessionPaths(ROOT / "sessions" / "by-hand")
    with SessionReader(paths) as reader:
        results = results_of(fold(reader.read()), paths.directory, 0.0)
    table = README.split("best of rounds 0, 1, 2, ms |")[1]
    assert len(results.problems) == 3
    for row in results.problems:
        line = re.search(rf"(?m)^\| {row.problem} \| (.*) \|$", table)
        assert line is not None
        eager, compiled, _, factor, over_compile, floor = line[1].split(" | ")
        assert (eager, compiled) == (milliseconds(row.eager_ms), milliseconds(row.compile_ms))
        assert row.factor is not None and float(factor.split()[0]) == float(f"{row.factor:.3g}")
        assert row.over_compile is not None and float(over_compile) == float(f"{row.over_compile:.3g}")
        assert row.floor_share is not None and floor == f"{row.floor_share * 100:.0f} %"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target, _, heading in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, heading
