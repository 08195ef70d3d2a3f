"""Special files, such as pipes, give one clear line immediately and never a hang."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.session.store import SessionPaths, create_session
from engine.system.text_file import MOST_BYTES, UnreadableFile, read_text
from tests.commandline import KernelTui

SOON_S = 30
PROBLEM = ("--problem", "builtin:quickstart/softmax")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A named pipe without a writer, named like a kernel."""
    path = tmp_path / "pipe.cpp"
    os.mkfifo(path)
    return path


def test_a_text_is_read_whatever_its_lines_end_with(tmp_path: Path) -> None:
    file = tmp_path / "windows.cpp"
    file.write_bytes(b"\xef\xbb\xbfint a;\r\nint b;\r\n")
    assert read_text(file) == "int a;\nint b;\n"


def test_what_is_no_ordinary_file_is_refused_with_what_it_is(tmp_path: Path, pipe: Path) -> None:
    huge = tmp_path / "huge.cpp"
    with huge.open("wb") as file:
        file.truncate(5 << 30)
    broken = tmp_path / "latin.cpp"
    broken.write_bytes(b"// caf\xe9\n")
    link = tmp_path / "link.cpp"
    link.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    refused = {
        pipe: "named pipe",
        link: "named pipe",
        tmp_path: "directory",
        Path("/dev/zero"): "device",
        tmp_path / "socket": "socket",
        huge: f"{5 << 30:,} bytes; the limit is {MOST_BYTES:,}",
        broken: "not UTF-8 text (byte 6)",
        tmp_path / "gone": "no such file",
        tmp_path / ("x" * 300): "name too long",
        Path("/proc/self/mem"): "cannot be read",
    }
    for path, words in refused.items():
        with pytest.raises(UnreadableFile) as caught:
            read_text(path)
        assert str(path) in str(caught.value)
        assert words.lower() in str(caught.value).lower()


def test_a_missing_files_name_may_be_misspelled(tmp_path: Path) -> None:
    for name in ("softmax.cpp", "softmx.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(UnreadableFile, match=re.escape(f"did you mean {tmp_path / 'softmax.cpp'}?")):
        read_text(tmp_path / "softmx.cpp")
    with pytest.raises(UnreadableFile, match=r"no such file$"):
        read_text(tmp_path / "gelu.cpp")


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "pipe.cpp", *PROBLEM),
        ("compare", "pipe.cpp", "pipe.cpp", *PROBLEM),
        ("build", "pipe.cpp", *PROBLEM),
        ("sass", "pipe.cpp", *PROBLEM),
        ("profile", "pipe.cpp", *PROBLEM),
        ("export", "pipe.cpp", *PROBLEM),
        ("run", "pipe.cpp"),
        ("doctor", "pipe.cpp"),
        ("problems", "pipe.cpp"),
    ],
    ids=lambda words: words[0],
)
def test_a_pipe_is_refused_by_every_command_that_reads_a_file(
    kernel_tui: KernelTui, pipe: Path, words: tuple[str, ...]
) -> None:
    result = kernel_tui(*words, timeout=SOON_S)
    assert result.returncode == ExitCode.USAGE, result.stdout + result.stderr
    assert "pipe.cpp: is " in result.stderr and "pipe" in result.stderr.partition("is ")[2]


def test_a_directory_of_problems_is_read_without_the_pipe_in_it(kernel_tui: KernelTui, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    result = kernel_tui("problems", tmp_path, timeout=SOON_S)
    assert result.returncode == ExitCode.USAGE
    assert "the directory contains no .py file" in result.stderr


def test_a_problem_of_gigabytes_is_refused(kernel_tui: KernelTui, tmp_path: Path) -> None:
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(3 << 30)
    result = kernel_tui("problems", "huge.py", timeout=SOON_S)
    assert result.returncode == ExitCode.USAGE
    assert f"{3 << 30:,} bytes" in " ".join(result.stdout.split())


def test_a_reply_that_never_ends_is_refused(kernel_tui: KernelTui, tmp_path: Path, pipe: Path) -> None:
    session: SessionPaths = create_session(tmp_path / "sessions", "demo", "", str(tmp_path / "config.toml"), 0)
    outbox = session.directory / "outbox"
    outbox.mkdir()
    (outbox / "softmax.r1.ideas.md").write_text("a prompt")
    for file, words in ((pipe, "named pipe"), (Path("/dev/zero"), "device")):
        result = kernel_tui("reply", "demo", "softmax.r1.ideas", file, timeout=SOON_S)
        assert result.returncode == ExitCode.USAGE
        assert words in result.stderr
    endless = kernel_tui("reply", "demo", "softmax.r1.ideas", "-", stdin="x" * (9 << 20), timeout=SOON_S)
    assert endless.returncode == ExitCode.USAGE
    assert "standard input: is too large; the limit is 8,388,608 bytes" in endless.stderr
