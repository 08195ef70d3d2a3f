"""Languages are called cuda, cpp and python wherever a person or a script reads or types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from engine.problem.spec import LANGUAGE_NAMES
from tests.commandline import KernelTui
from tui.cli.steering.seed_kernel import seed_kernel

BY_HAND = Path(__file__).parents[2] / "sessions" / "by-hand"
SESSIONS = ("--sessions", str(BY_HAND.parent))


@pytest.mark.parametrize("option", ["--language", "--form"])
@pytest.mark.parametrize(("typed", "stored"), [*((name, stored) for stored, name in LANGUAGE_NAMES.items()),
                                               *((stored, stored) for stored in LANGUAGE_NAMES)])  # fmt: skip
def test_the_option_takes_the_name_and_the_suffix(option: str, typed: str, stored: str) -> None:
    arguments = ["demo", "-", "--problem", "softmax", option, typed]
    assert seed_kernel.make_context("seed-kernel", arguments).params["language"] == stored


def test_help_has_the_names_and_no_old_option(kernel_tui: KernelTui) -> None:
    for command in ("kernels", "seed-kernel"):
        said = kernel_tui(command, "--help").stdout
        assert "--language [cuda|cpp|python|triton]" in said and "--form" not in said


def test_an_unknown_language_is_refused_with_the_known_ones(kernel_tui: KernelTui) -> None:
    refused = kernel_tui("kernels", "--language", "rust", *SESSIONS)
    assert refused.returncode == ExitCode.USAGE
    assert all(repr(name) in refused.stderr for name in LANGUAGE_NAMES.values())


def test_kernels_are_found_and_listed_by_the_name(kernel_tui: KernelTui) -> None:
    found = kernel_tui.json("kernels", "--language", "cuda", *SESSIONS)
    assert {one["language"] for one in found} == {"cuda"}
    assert kernel_tui.json("kernels", "--language", "python", *SESSIONS) == []
    listed = kernel_tui("kernels", *SESSIONS, env={"COLUMNS": "200"}).stdout.splitlines()
    row = next(line for line in listed if found[0]["variant"] in line)
    assert "cuda" in row.split()


def test_other_json_and_tables_have_the_names(kernel_tui: KernelTui) -> None:
    shown = kernel_tui.json("show", str(BY_HAND))
    assert {best["language"] for best in shown["best"].values()} == {"cuda"}
    kernel = shown["best"]["softmax"]["kernel"]
    assert kernel_tui.json("show", str(BY_HAND), kernel)["language"] == "cuda"
    assert "cuda" in kernel_tui("sessions", "--compare", str(BY_HAND), str(BY_HAND)).stdout
    (row,) = kernel_tui.json("problems", "builtin:quickstart/softmax")
    assert row["languages"] == ["cuda", "cpp", "python", "triton"]
    assert row["proposers"][0]["languages"] == ["cuda", "cpp"]
    assert "cuda cpp python triton" in kernel_tui("problems", "builtin:quickstart/softmax").stdout
    training = kernel_tui("export", str(BY_HAND), "--training", "-").stdout.splitlines()
    assert {kernel_tui.decode(line)["kernel"]["language"] for line in training} == {"cuda"}
