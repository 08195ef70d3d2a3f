"""The project as a stranger gets it: the wheel away from the checkout, pinned versions, the two commands of make."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from engine import __version__

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "kernel_tui", "tui", "problems")


def files_of(package: Path) -> set[str]:
    """Everything in a package that is no leftover of running it."""
    return {
        file.relative_to(package.parent).as_posix()
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith(".")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from the sources as they are, without changing the checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stderr
    (file,) = directory.glob("*.whl")
    return zipfile.ZipFile(file)


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    for package in PACKAGES:
        assert files_of(ROOT / package) - inside == set()
    assert {name.split("/")[0] for name in inside} == {*PACKAGES, f"kernel_tui-{__version__}.dist-info"}


def test_the_wheel_installs_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(name).decode())
    assert dict(scripts["console_scripts"]) == {"kernel-tui": "tui.cli:main"}


def test_the_wheel_works_away_from_the_checkout(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    wheel.extractall(installed)
    code = """
from pathlib import Path
import engine
from engine.config import PRESETS, parse_config, preset_text
from engine.problem.catalog import resolve
for preset in PRESETS:
    for file in resolve(parse_config(preset_text(preset), "config.toml").problems, Path.cwd()):
        print(file.path)
"""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    files = [Path(line) for line in ran.stdout.splitlines()]
    assert len(files) == 4 + 8 + 10
    assert all(file.is_relative_to(installed) for file in files)


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
    """A fresh copy of what make reads, with a PATH that has make and a shell and no more."""
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
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


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
    assert "make: installing kernel-tui and PyTorch into .venv, once." in make(checkout, "run").stdout
    assert make(checkout, "run").stdout == ""
    later = (checkout / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    assert "make: installing" in make(checkout, "run").stdout


def test_the_ci_script_is_runnable() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], timeout=10).returncode == 0
