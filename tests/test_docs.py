"""The manual matches the program: commands, config keys, files, links and kernels exist, and the tutorial works."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import click
import msgspec
import pytest
from msgspec.structs import fields

from engine.config.schema import parse_config
from engine.evaluation.build.compilers import build
from engine.evaluation.judge_policy import POLICY
from engine.exit_codes import ExitCode
from engine.problem.c_header import derive_header
from engine.problem.catalog import inspect_files, resolve
from engine.problem.spec import Language, ProblemSpec
from engine.session.records.events import AnyEvent
from engine.session.records.verdict import Status
from tests.commandline import KernelTui
from tests.patience import PATIENCE_S
from tui.cli.main import cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")), *DOCS.rglob("*.md")]
CODE_FOLDERS = ("engine", "tui", "kernel_tui", "problems", "tests", "benchmarks", "docs", ".ci")
NVCC = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": ""}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def blocks(page: Path, *languages: str) -> list[str]:
    """Return a page's fenced blocks in the given languages."""
    found = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", page.read_text())
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[str]:
    """Return the ``kernel-tui`` commands in a page, from blocks and sentences."""
    lines = [line.removeprefix("$ ") for block in blocks(page, "console", "sh", "bash") for line in block.splitlines()]
    prose = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    inline = [" ".join(code.split()) for code in re.findall(r"`(kernel-tui [^`]+)`", prose)]
    return [line for line in (*lines, *inline) if line.startswith("kernel-tui ")]


def context_of(arguments: list[str]) -> click.Context:
    """Return the context in which a command would run. Raises click.ClickException for invalid options or values."""
    if arguments[0] not in cli.list_commands(click.Context(cli)) and arguments[0].endswith(".toml"):
        arguments = ["run", *arguments]
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None, arguments[0]
    return command.make_context(arguments[0], arguments[1:])


# Links, paths, commands and snippets


@each_page
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target, _, heading in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, heading


@each_page
def test_paths_of_the_code_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(map(re.escape, CODE_FOLDERS))})/[\w./-]*)`", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_pages_that_the_program_names_exist() -> None:
    files = [ROOT / "config.toml", ROOT / "Makefile"]
    files += [file for folder in ("engine", "tui") for file in (ROOT / folder).rglob("*.*") if file.suffix != ".pyc"]
    named = {(page, file) for file in files for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", file.read_text())}
    assert named
    assert {(page, file) for page, file in named if not (ROOT / page).exists()} == set()


@each_page
def test_commands_have_these_options(page: Path) -> None:
    for line in commands(page):
        arguments = shlex.split(line, comments=True)[1:]
        if arguments == ["--help"]:
            continue
        command = cli.get_command(click.Context(cli), arguments[0])
        if command is None:
            assert arguments[0].endswith(".toml"), line
            continue
        if isinstance(command, click.Group) and len(arguments) > 1:
            arguments = arguments[1:]
            command = command.commands[arguments[0]]
        known = {option for parameter in command.params for option in parameter.opts}
        named = {word for word in arguments[1:] if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert named <= known | {"--help"}, line


@each_page
def test_commands_of_examples_are_complete(page: Path) -> None:
    for block in blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ kernel-tui "):
                context_of(shlex.split(line)[2:])


@each_page
def test_config_snippets_are_valid(page: Path) -> None:
    for text in blocks(page, "toml"):
        parse_config(text, ROOT / "config.toml", needs_problems=False)


# The pages that are generated


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the manual with MkDocs."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert built.returncode == 0, built.stderr
    return directory


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    for name in ("docs", "engine", "tui", "problems", "kernel_tui", "mkdocs.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a") as page:
        page.write("\n[nowhere](reference/config.md#no-such-heading)\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert built.returncode != 0
    assert "no-such-heading" in built.stderr


def test_the_site_has_every_command_key_event_number_and_exit_code(site: Path, generator: ModuleType) -> None:
    names = ("command-line", "config", "events", "judge-numbers")
    pages = {name: (site / "reference" / f"{name}.html").read_text() for name in names}
    for name in cli.list_commands(click.Context(cli)):
        command = cli.get_command(click.Context(cli), name)
        for path in [f"{name}-{one}" for one in command.commands] if isinstance(command, click.Group) else [name]:
            assert f'id="kernel-tui-{path}"' in pages["command-line"], path
    for table in generator.config_tables().values():
        for key in table.model_fields:
            assert re.search(rf"<code>\[*{key}\]*</code>", pages["config"]), key
    for event in get_args(AnyEvent):
        assert f'id="{event.__struct_config__.tag}"' in pages["events"], event
    for part in fields(POLICY):
        for number in fields(getattr(POLICY, part.name)):
            assert f"<code>{number.name}</code>" in pages["judge-numbers"], number
    codes = re.findall(r"<td><code>(\d+)</code></td>", (site / "reference" / "exit-codes.html").read_text())
    assert {int(code) for code in codes} == {int(code) for code in ExitCode}


def test_the_generated_parts_of_the_reference_are_up_to_date(generator: ModuleType) -> None:
    pages = {page: page.read_text() for page in sorted(generator.PAGES.glob("*.md"))}
    assert any("<!-- generate:" in text for text in pages.values())
    for page, text in pages.items():
        assert text.count("<!-- generate:") == len(generator.GENERATED.findall(text)), f"{page} has an unfinished part"
        assert generator.filled(text) == text, f"{page} is out of date; run: make docs"


def test_the_fields_of_events_have_the_names_that_the_file_has(site: Path) -> None:
    page = (site / "reference" / "events.html").read_text()
    shown = {
        identifier: set(re.findall(r"<tr>\s*<td><code>(\w+)</code></td>", section))
        for identifier, section in re.findall(r'(?s)<h[23] id="([^"]+)">(.*?)(?=<h[23] id|\Z)', page)
    }
    stored = msgspec.json.schema(AnyEvent)["$defs"]
    for name, schema in stored.items():
        kind = schema["properties"].get("kind", {}).get("enum", [None])[0]
        is_event = kind in {event.__struct_config__.tag for event in get_args(AnyEvent)}
        names = set(schema["properties"]) - ({"kind"} if is_event else set())
        assert shown[kind if is_event else name.lower()] == names, name
    assert {"form", "floor_ms", "floor_share", "survivors"} <= set().union(*shown.values())


def test_every_config_key_is_described(generator: ModuleType) -> None:
    for name, table in generator.config_tables().items():
        sections = {"provider", "models", *generator.config_tables()}
        assert {key for key in table.model_fields if key not in sections} <= set(generator.field_meanings(table)), name


def test_every_status_of_a_verdict_is_explained() -> None:
    text = (DOCS / "how-to" / "read-a-verdict.md").read_text()
    assert {status for status in get_args(Status) if f"`{status}`" not in text} == set()


# Kernels and the tutorial


@pytest.mark.parametrize(
    ("fence", "language", "problem"),
    [("cpp", "cpp", "quickstart/rmsnorm"), pytest.param("cuda", "cu", "quickstart/gelu", marks=NVCC)],
)
def test_the_example_kernels_build(fence: str, language: Language, problem: str, tmp_path: Path) -> None:
    (example,) = blocks(DOCS / "reference" / "kernel-abi.md", fence)
    (spec,) = asyncio.run(inspect_files(resolve([f"builtin:{problem}"], ROOT)))
    assert isinstance(spec, ProblemSpec)
    library, report = asyncio.run(build(example, language, derive_header(spec, language), "sm_90a", tmp_path))
    assert library is not None, report.log


def test_the_kernel_for_an_unsupported_operator_is_correct(kernel_tui: KernelTui, tmp_path: Path) -> None:
    page = DOCS / "how-to" / "unsupported-operator.md"
    (tmp_path / "scan.py").write_text(blocks(page, "python")[0])
    (tmp_path / "scan.cpp").write_text(blocks(page, "cpp")[0])
    judged = kernel_tui("eval", "scan.cpp", "--problem", "scan.py", "--quick", env=CPU_ONLY)
    assert judged.returncode == ExitCode.OK, judged.stdout + judged.stderr


@pytest.mark.parametrize("page", [DOCS / "how-to" / "your-operator.md", ROOT / "README.md"], ids=lambda page: page.name)
def test_example_problems_can_be_searched(page: Path, kernel_tui: KernelTui, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(blocks(page, "python")[0])
    listed = kernel_tui("problems", "mine.py", env=CPU_ONLY)
    assert listed.returncode == ExitCode.OK, listed.stderr


def test_the_tutorial_works(kernel_tui: KernelTui, tmp_path: Path) -> None:
    page = DOCS / "tutorial" / "first-search.md"
    (config,) = blocks(page, "toml")
    (tmp_path / "first.toml").write_text(config)
    for block in blocks(page, "console"):
        line, *shown = block.splitlines()
        ran = kernel_tui(*shlex.split(line)[2:], env=CPU_ONLY, timeout=PATIENCE_S)
        assert ran.returncode == ExitCode.OK, f"{line}\n{ran.stdout}\n{ran.stderr}"
        printed = {" ".join(one.split()) for one in ran.stdout.splitlines()}
        assert {" ".join(one.split()) for one in shown if "eager ms" in one} <= printed, line
    assert "class ModelNew" in (tmp_path / "gelu_new.py").read_text()
