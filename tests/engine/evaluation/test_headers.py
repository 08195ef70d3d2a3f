"""Precompiled headers, built by the real compiler for a torch that takes no time: one whose headers are a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.evaluation.headers import WITHOUT
from engine.toolkit import find_cpp_compiler
from tests.commandline import ROOT

SCRIPT = """
import asyncio, sys
from pathlib import Path
from engine.evaluation.headers import precompiled
print(asyncio.run(precompiled(tuple(sys.argv[2:]), Path(sys.argv[1]))))
"""
SOURCE = "#include <torch/extension.h>\nint width() { return WIDTH + HELD; }\n"


def install(directory: Path, text: str) -> None:
    """A torch in ``directory`` whose header is ``text``."""
    for file, content in (
        ("include/torch/extension.h", text),
        ("utils/cpp_extension.py", "'-std=c++17'"),
        ("__init__.py", ""),
    ):
        (directory / "torch" / file).parent.mkdir(parents=True, exist_ok=True)
        (directory / "torch" / file).write_text(content)


def install_wanted(directory: Path, text: str) -> None:
    """The same, and as many have asked for it already as go without."""
    install(directory, text)
    assert [ask(directory) for _ in range(WITHOUT)] == ["None"] * WITHOUT
    assert not list(directory.rglob("*.gch"))


def ask(directory: Path, *flags: str) -> str:
    """What a process of its own is told, in which the torch of ``directory`` is found."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(directory / "cache"), *(flags or ("-DWIDTH=4",))],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def headers_read(directory: Path, home: str, *flags: str) -> list[str]:
    """What the compiler reads for an extension as torch builds it, ``! `` before what is precompiled."""
    source = directory / "extension.cpp"
    source.write_text(SOURCE)
    torch = directory / "torch" / "include"
    command = [find_cpp_compiler(), "-H", "-fsyntax-only", f"-I{home}", f"-isystem{torch}", "-fPIC", "-std=c++17"]
    command += ["-DTORCH_API_INCLUDE_EXTENSION_H", *flags, str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr.splitlines()


def test_the_compiler_takes_them_where_its_flags_fit(tmp_path: Path) -> None:
    install_wanted(tmp_path, "#define HELD 3")
    home = ask(tmp_path)
    assert any(line == f"! {home}/torch/extension.h.gch" for line in headers_read(tmp_path, home, "-DWIDTH=4"))
    other = headers_read(tmp_path, home, "-DWIDTH=5")
    assert not any(line.startswith("!") for line in other), "compiled for another macro"
    assert f". {tmp_path}/torch/include/torch/extension.h" in other


def test_who_wants_the_same_at_once_waits_for_one_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, calls = tmp_path / "compiler", tmp_path / "calls"
    compiler.write_text(f'#!/bin/sh\necho >> {calls}\nsleep 0.5\nexec {find_cpp_compiler()} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    install_wanted(tmp_path, "#define HELD 3")
    with ThreadPoolExecutor(3) as pool:
        homes = set(pool.map(ask, [tmp_path] * 3))
    assert len(homes) == 1 and (Path(homes.pop()) / "torch" / "extension.h.gch").is_file()
    assert calls.read_text() == "\n"


def test_those_that_cannot_be_had_are_tried_once(tmp_path: Path) -> None:
    install_wanted(tmp_path, "#error no such torch")
    assert ask(tmp_path) == "None"
    install(tmp_path, "#define HELD 3")
    assert ask(tmp_path) == "None"


@pytest.mark.parametrize(
    "flags",
    [
        ("-wrapper", "sh,-c,touch {made}"),
        ("-o", "{made}"),
        ("-MD", "-MF{made}"),
        ("-fdump-tree-original={made}",),
        ("-fmodule-mapper=|touch {made}",),
    ],
)
def test_no_flags_of_a_kernel_make_the_compiler_do_more_than_compile(tmp_path: Path, flags: tuple[str, ...]) -> None:
    install(tmp_path, "#define HELD 3")
    made = tmp_path / "made"
    given = [flag.format(made=made) for flag in flags]
    assert {ask(tmp_path, *given) for _ in range(WITHOUT + 1)} == {"None"}
    assert not made.exists() and not list(tmp_path.rglob("*.gch"))


def test_flags_for_speed_are_taken(tmp_path: Path) -> None:
    install(tmp_path, "#define HELD 3")
    flags = (
        "-O3",
        "-march=native",
        "-mavx2",
        "-ffast-math",
        "-fopenmp",
        "-fno-math-errno",
        "-funroll-loops",
        "-std=c++20",
    )
    assert [ask(tmp_path, *flags) for _ in range(WITHOUT)] == ["None"] * WITHOUT
    assert (Path(ask(tmp_path, *flags)) / "torch" / "extension.h.gch").is_file()
