"""One rule for every command: exit code 3 for a missing session, 2 for any other unknown name."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.exit_codes import ExitCode
from tests.commandline import ROOT
from tui.cli.main import main

SOFTMAX = "--problem builtin:quickstart/softmax"

COMMANDS = {
    "no such session": (
        ExitCode.NO_SESSION,
        "no such session",
        [
            "show gone",
            "report gone",
            "resume gone",
            "attach gone",
            "replay gone",
            "sessions gone",
            "sessions --compare gone by-hand",
            "prompt gone",
            "reply gone",
            "export gone v1",
            "sass gone v1",
            "profile gone v1",
            "pause gone",
            "prune gone v1",
            "budget gone --rounds 3",
            "retry gone v1",
            f"seed-kernel gone kernel.cpp {SOFTMAX}",
        ],
    ),
    "no such kernel, idea or problem in the session": (
        ExitCode.USAGE,
        "no ",
        [
            "show by-hand v9999",
            "prompt by-hand v9999",
            "prompt by-hand --problem gone",
            "export by-hand v9999",
            "export by-hand --best gone",
            "sass by-hand v9999",
            "profile by-hand v9999",
            "reply by-hand gone kernel.cpp",
            "prune by-hand v9999",
            "restore by-hand i9999",
            "pin by-hand gone",
            "unpin by-hand v9999",
            "retry by-hand v9999",
            "seed-idea by-hand --problem gone text",
            "seed-idea by-hand --problem softmax --parent v9999 text",
            "seed-kernel by-hand kernel.cpp --problem gone",
            "seed-kernel by-hand kernel.cpp --problem softmax --idea i9999",
        ],
    ),
    "no such file": (
        ExitCode.USAGE,
        "no such file",
        [
            f"eval gone.cpp {SOFTMAX}",
            f"compare kernel.cpp gone.cpp {SOFTMAX}",
            f"build gone.cpp {SOFTMAX}",
            f"export gone.cpp {SOFTMAX}",
            f"sass gone.cpp {SOFTMAX}",
            f"profile gone.cu {SOFTMAX}",
            "seed-kernel by-hand gone.cpp --problem softmax",
            "run gone.toml",
            "doctor gone.toml",
            f"eval kernel.cpp {SOFTMAX} --config gone.toml",
        ],
    ),
    "no such problem": (
        ExitCode.USAGE,
        "gone",
        [
            "eval kernel.cpp --problem gone",
            "compare kernel.cpp kernel.cpp --problem gone.py",
            "build kernel.cpp --problem builtin:gone",
            "export kernel.cpp --problem gone",
            f"export gone {SOFTMAX}",
            "sass kernel.cpp --problem gone",
            "problems gone",
            "problems builtin:gone",
        ],
    ),
    "no such choice": (
        ExitCode.USAGE,
        "gone",
        [
            f"eval kernel.cpp {SOFTMAX} --device gone",
            f"eval kernel.cpp {SOFTMAX} --shapes gone",
            f"build kernel.cpp {SOFTMAX} --arch gone",
            f"sass kernel.cpp {SOFTMAX} --arch gone",
            "init --preset gone",
            "kernels --bank gone",
            "kernels --sessions gone",
            "completion gone",
            "run models.toml",
            "gone by-hand",
            "attach by-hand --once --size gone",
            "show by-hand gone",
        ],
    ),
    "a session where a kernel file belongs": (
        ExitCode.USAGE,
        "to export the problem's best kernel: kernel-tui export by-hand --best softmax",
        [f"export by-hand {SOFTMAX}", "export by-hand --problem softmax"],
    ),
    "a session that is not a benchmark": (
        ExitCode.USAGE,
        "headline-h200 is not a benchmark; to resume it: kernel-tui resume headline-h200",
        ["bench --resume headline-h200"],
    ),
    "too large a number": (
        ExitCode.USAGE,
        "is above the maximum of 1,000,000,000,000",
        ["resume by-hand --rounds 100000000000000000000"],
    ),
    "no such number": (
        ExitCode.USAGE,
        "is not",
        [
            "resume by-hand --minutes nan",
            "budget by-hand --dollars 1e400",
            "replay by-hand --speed inf",
        ],
    ),
    "a place that cannot be written": (
        ExitCode.STORAGE,
        "cannot write",
        [
            "init gone/config.toml",
            "export by-hand v1 -o gone/v1.py",
            "export by-hand --report gone/report.md",
            "report by-hand -o gone/report.html",
            f"build kernel.cpp {SOFTMAX} --output gone/kernel.so",
        ],
    ),
    "no key": (ExitCode.NO_KEY, "", ["run keyed.toml --headless", "doctor keyed.toml"]),
    "nobody to carry it out": (
        ExitCode.FAILURE,
        "no engine is running",
        ["pause by-hand", "prune by-hand v1", "seed-idea by-hand --problem softmax text", "attach by-hand"],
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory of the commands, with the sessions that ship with the project."""
    (tmp_path / "kernel.cpp").write_text('extern "C" int launch(const float*, float*, void*) { return 0; }\n')
    (tmp_path / "models.toml").write_text('problems = ["builtin:quickstart/*"]\n[[models]]\nprovider = "gone"\n')
    keyed = 'problems = ["builtin:quickstart/*"]\n[[models]]\nprovider = "openai"\nmodel = "gpt-5.5"\n'
    (tmp_path / "keyed.toml").write_text(keyed)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNEL_TUI_SESSIONS", str(ROOT / "sessions"))


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("what", COMMANDS)
def test_what_is_wrong_has_one_code_and_one_line_in_every_command(
    capsys: pytest.CaptureFixture[str], what: str
) -> None:
    code, words, commands = COMMANDS[what]
    wrong = []
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        said = capsys.readouterr().err.strip().splitlines()
        if ended.value.code != code or words not in (said or [""])[-1]:
            wrong.append(f"{command}: {ended.value.code} {said[-1:]}")
    assert not wrong, "\n".join(wrong)
