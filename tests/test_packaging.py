"""The project as a new user installs it: a wheel outside the checkout, pinned versions, and the make targets."""

from __future__ import annotations

import configparser
import email
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import grimp
import pytest
import tomli_w
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.pseudo_terminal import INSTALLED, Terminal
from engine import __version__
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "kernel_tui", "tui", "problems")


def files_of(package: Path) -> set[str]:
    """Return all files of a package except generated ones."""
    return {
        file.relative_to(package.parent).as_posix()
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build a source distribution from the checkout, and from that a wheel, as PyPI receives them."""
    directory = tmp_path_factory.mktemp("distributions")
    hatchling(ROOT, "sdist", directory)
    (source,) = directory.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    (unpacked,) = (directory / "unpacked").iterdir()
    hatchling(unpacked, "wheel", directory)
    (wheel,) = directory.glob("*.whl")
    return source, wheel


def hatchling(sources: Path, target: str, directory: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)]
    built = subprocess.run(build, cwd=sources, capture_output=True, text=True, timeout=PATIENCE_S)
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="module")
def wheel(distributions: tuple[Path, Path]) -> zipfile.ZipFile:
    return zipfile.ZipFile(distributions[1])


def test_pypi_accepts_both_distributions(distributions: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert checked.returncode == 0 and checked.stdout.count("PASSED") == 2, checked.stdout + checked.stderr


def test_pip_installs_the_wheel_in_a_clean_environment(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    """Only the dependencies come from the current environment, so that the test needs no network."""
    environment = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=PATIENCE_S)
    python = str(environment / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q"]
    installed = subprocess.run([*install, str(distributions[1])], capture_output=True, text=True, timeout=PATIENCE_S)
    assert installed.returncode == 0, installed.stderr
    (site,) = environment.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    command = [str(environment / "bin" / "kernel-tui"), "--version"]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0 and __version__ in ran.stdout, ran.stderr


def test_every_import_is_a_declared_dependency(wheel: zipfile.ZipFile) -> None:
    """A package that only this environment has must not be needed by an installation."""
    graph = grimp.build_graph("engine", "tui", "kernel_tui", include_external_packages=True, cache_dir=None)
    ours = ("engine", "tui", "kernel_tui", "problems", "benchmarks")
    tops = {name.partition(".")[0] for name in graph.modules} - set(ours) - sys.stdlib_module_names
    tops -= {"pydantic_core"}  # pydantic requires one version of it
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    about = email.message_from_bytes(wheel.read(name))
    declared = [one for one in about.get_all("Requires-Dist", []) if "extra == 'dev'" not in one]
    names = {canonicalize_name(Requirement(one).name) for one in declared}
    homes = importlib.metadata.packages_distributions()
    missing = {top for top in tops if not names & {canonicalize_name(home) for home in homes.get(top, ())}}
    assert not missing
    assert {"cuda", "report", "serve", "tracking"} <= set(about.get_all("Provides-Extra", []))


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    inside = {name.removeprefix("kernel_tui/_packages/") for name in wheel.namelist()}
    for package in PACKAGES:
        assert files_of(ROOT / package) - inside == set()


def test_only_kernel_tui_stands_at_the_top_of_site_packages(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert top == {"kernel_tui", f"kernel_tui-{__version__}.dist-info"}


def test_the_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(name).decode())
    assert dict(scripts["console_scripts"]) == {"kernel-tui": "kernel_tui.command:main"}


@pytest.fixture
def installed(wheel: zipfile.ZipFile, tmp_path: Path) -> Path:
    """Create a virtual environment that contains the wheel and uses the libraries of the current environment."""
    environment = tmp_path / "installed"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=PATIENCE_S)
    (site,) = environment.glob("lib/python*/site-packages")
    wheel.extractall(site)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site / "libraries.pth").write_text("".join(f"{path}\n" for path in libraries))
    return environment


def run_installed(installed: Path, directory: Path, *arguments: str, seconds: float = 60) -> str:
    command = [str(installed / "bin" / "python"), "-I", "-c", INSTALLED, *arguments]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    ran = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=seconds)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_installed_command_shows_the_bundled_session(installed: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    assert "softmax" in run_installed(installed, away, "show", "by-hand")
    assert list(away.iterdir()) == []


def test_the_monitor_changes_nothing_in_the_bundled_session(installed: Path, tmp_path: Path) -> None:
    (bundled,) = installed.glob("lib/python*/site-packages/kernel_tui/_packages/sessions/by-hand")
    before = {file: file.read_bytes() for file in bundled.rglob("*") if file.is_file()}
    python = str(installed / "bin" / "python")
    terminal = Terminal(["attach", "by-hand"], tmp_path / "settings", directory=tmp_path, python=python)
    try:
        terminal.wait_for("read-only")
        terminal.type("R")
        terminal.wait_for("kernel-tui resume by-hand")
        terminal.type("M")
        terminal.wait_for("This monitor is read-only.")
    finally:
        terminal.close()
    after = {file: file.read_bytes() for file in bundled.rglob("*") if file.is_file()}
    made_by_sqlite = {bundled / "session.db-shm", bundled / "session.db-wal"}
    assert {file: content for file, content in after.items() if file not in made_by_sqlite} == before


def test_load_c_builds_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """A Python kernel that a search exported runs without the command."""
    code = "from kernel_tui import load_c; print(load_c('extern \"C\" int two() { return 2; }', 'cpp').path.is_file())"
    command = [str(installed / "bin" / "python"), "-I", "-c", code]
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    ran = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout.strip()) == (0, "True"), ran.stderr


def test_the_installed_command_searches(installed: Path, tmp_path: Path) -> None:
    """The first search of the README, with one problem: the engine, its judge and its runners start from the wheel.

    The user's folder has a package with the name of one of ours.
    """
    away = tmp_path / "away"
    (away / "engine").mkdir(parents=True)
    (away / "engine" / "__init__.py").write_text("raise ImportError('this is the user's package')\n")
    run_installed(installed, away, "init")
    config = tomllib.loads((away / "config.toml").read_text())
    config["problems"] = ["builtin:quickstart/softmax"]
    config["search"] |= {"rounds": 1, "ideas": 1, "variants": 1, "runoff": 0}
    config["evaluation"] |= {"trials": 3, "max_pairs": 20, "torch_compile": False}
    (away / "config.toml").write_text(tomli_w.dumps(config))
    run_installed(installed, away, "run", "config.toml", "--headless", seconds=240)
    assert [file.name for file in away.glob("sessions/*/best/*.cpp")] == ["softmax.cpp"]


def test_the_wheel_holds_the_problems_that_presets_name(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel.extractall(site)
    installed = site / "kernel_tui" / "_packages"
    code = """
from pathlib import Path
import engine
from engine.config.schema import PRESETS, parse_config, preset_text
from engine.problem.catalog import resolve
for preset in PRESETS:
    for file in resolve(parse_config(preset_text(preset), "config.toml").problems, Path.cwd()):
        print(file.path)
"""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr
    files = [Path(line) for line in ran.stdout.splitlines()]
    assert len(files) == 4 + 8 + 10
    assert all(file.is_relative_to(installed) for file in files)


def test_the_source_distribution_holds_every_tracked_file(distributions: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    with tarfile.open(distributions[0]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert set(listed.stdout.splitlines()) - inside == set()


def test_every_dependency_is_pinned_to_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        canonicalize_name(name): version
        for name, version in (line.split("==") for line in lines if line and not line.startswith("#"))
    }
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement
    assert pins["torch"] == "2.13.0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh copy of make's inputs, with only make and a shell on the PATH."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    bare = tmp_path / "bin"
    bare.mkdir()
    for tool in ("sh", "make", "touch", "rm", "test"):
        (bare / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(checkout / "bin"), "HOME": str(checkout)}
    command = [str(checkout / "bin" / "make"), *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def fake_python(checkout: Path, script: str) -> None:
    file = checkout / "bin" / "python3"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def test_make_without_python(checkout: Path) -> None:
    made = make(checkout, "run")
    assert made.returncode == 2
    assert "no Python 3.11 or later found" in made.stderr


def test_make_with_an_old_python(checkout: Path) -> None:
    fake_python(checkout, "exit 1")
    made = make(checkout, "test", "PYTHON=python3")
    assert made.returncode == 2
    assert "python3 is not Python 3.11 or later" in made.stderr


def test_make_with_a_python_that_has_no_venv_module(checkout: Path) -> None:
    fake_python(checkout, 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')
    made = make(checkout, "run")
    assert made.returncode == 2
    assert "apt install python3-venv" in made.stderr
    assert not (checkout / ".venv").exists()


def test_make_without_a_compiler(checkout: Path) -> None:
    made = make(checkout, "compiler")
    assert made.returncode == 2
    assert "no C++ compiler found" in made.stderr
    fake_python(checkout, "exit 0")
    (checkout / "bin" / "g++").symlink_to(checkout / "bin" / "python3")
    assert make(checkout, "compiler").returncode == 0


def test_make_installs_again_only_when_the_requirements_change(checkout: Path) -> None:
    fake_python(checkout, "exit 0")
    (checkout / ".venv" / "bin").mkdir(parents=True)
    for name in ("pip", "python", "kernel-tui"):
        shutil.copy(checkout / "bin" / "python3", checkout / ".venv" / "bin" / name)
    shutil.copy(checkout / "bin" / "python3", checkout / "bin" / "g++")
    assert "make: installing kernel-tui and PyTorch into .venv." in make(checkout, "run").stdout
    assert make(checkout, "run").stdout == ""
    later = (checkout / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert "make: installing" in make(checkout, "run").stdout


def test_the_ci_script_is_runnable() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], timeout=10).returncode == 0
