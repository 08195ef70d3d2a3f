"""Searches with several languages: each idea names one, kernels of all languages meet in the runoff.

The same search asks for hardware counters, which a CPU does not have: it says so once and goes on.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from engine.devices.fact import DeviceFact
from engine.exit_codes import ExitCode
from engine.problem.spec import language_of_file
from engine.search.problem_loader import cannot_run
from engine.session.records.events import LogLine
from engine.session.state.session_state import SessionState, fold
from engine.session.store import SessionPaths, SessionReader
from tests.commandline import KernelTui
from tests.engine.proposers import canned

CONFIG = """\
name = "both"
problems = ["softmax.py"]
[search]
languages = {languages}
rounds = 1
ideas = 2
variants = 1
parents = 2
fixes = 0
runoff = 4
[evaluation]
device = "cpu"
trials = 3
max_pairs = 8
torch_compile = false
[profile]
counters = true
[[models]]
provider = "command"
command = ["{python}", "{folder}/author.py"]
"""
AUTHOR = '''
import json, re, sys

sys.path.insert(0, {root!r})
from tests.engine.proposers import canned

MODULE = """
import torch
from kernel_tui import load_c

# {{tag}}
kernels = load_c(\'\'\'
#include <math.h>
#include <unistd.h>
extern "C" int softmax(const float* x, float* out, long long rows, long long columns) {{{{
    usleep(20000);
    for (long long r = 0; r < rows; ++r) {{{{
        const float* a = x + r * columns;
        float* b = out + r * columns;
        float top = a[0], sum = 0.0f;
        for (long long c = 1; c < columns; ++c) top = fmaxf(top, a[c]);
        for (long long c = 0; c < columns; ++c) sum += b[c] = expf(a[c] - top);
        for (long long c = 0; c < columns; ++c) b[c] /= sum;
    }}}}
    return 0;
}}}}\'\'\', "cpp")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        kernels.softmax(x, out, x.shape[0], x.shape[1])
        return out
"""

prompt = sys.stdin.read()
if "Propose" in prompt:
    text = "Walk each row in plain loops" if "no kernel yet" in prompt else "Keep the divisions out of the inner loop"
    languages = re.findall(r"`(\\w+)`", prompt.split("names the language of its kernel: ")[1].split(".")[0])
    print(json.dumps({{"ideas": [
        {{"category": "memory", "language": language, "bottleneck": "loads", "text": f"{{text}}, in {{language}}."}}
        for language in languages
    ]}}))
else:
    tag = re.search(r"> (.*in (\\w+)\\.)", prompt)
    if "ModelNew" in prompt.split("## Rules")[1]:
        print(canned.block(MODULE.format(tag=tag[1]), "python"))
    else:
        print(canned.block(canned.asleep(canned.good(tag[1]))))
'''


def ends(kernel_tui: KernelTui, folder: Path, languages: str) -> tuple[int, str]:
    (folder / "softmax.py").write_text(canned.SLOW_PROBLEM)
    root = str(Path(__file__).parents[2])
    (folder / "author.py").write_text(textwrap.dedent(AUTHOR).format(root=root))
    (folder / "config.toml").write_text(CONFIG.format(languages=languages, python=sys.executable, folder=folder))
    ended = kernel_tui("run", folder / "config.toml", "--headless")
    return ended.returncode, ended.stdout + ended.stderr


def test_ideas_name_languages_and_all_kernels_meet_in_the_runoff(kernel_tui: KernelTui, tmp_path: Path) -> None:
    code, said = ends(kernel_tui, tmp_path, '["cpp", "python"]')
    assert code == 0, said
    with SessionReader(SessionPaths.at(tmp_path / "sessions" / "both")) as reader:
        events = list(reader.read())
        state: SessionState = fold(events)
        problem = state.problems["softmax"]
        assert problem.languages == ("cpp", "py")
        by_language = {
            language: [one for one in state.variants_of("softmax") if one.language == language]
            for language in problem.languages
        }
        for language, variants in by_language.items():
            assert {state.ideas[one.idea].data["language"] for one in variants} == {language}
            assert any(one.correct for one in variants), [(one.verdict, one.id) for one in variants]
        logged = [one.event.text for one in events if isinstance(one.event, LogLine)]
        in_runoff = {state.variants[one.variant].language for one in problem.rounds[0].standings}
        assert in_runoff == {"cpp", "py"}, [logged, [one.verdict for one in state.variants.values()]]
        assert problem.best is not None
        best = state.variants[problem.best]
        assert reader.text(best.source)
        files = sorted(one.suffix for one in (tmp_path / "sessions" / "both" / "best").iterdir())
    assert files == [f".{best.language}"]
    assert sum("hardware counters" in text for text in logged) == 1, logged


def test_triton_without_a_gpu_is_refused_with_a_remedy(kernel_tui: KernelTui, tmp_path: Path) -> None:
    code, said = ends(kernel_tui, tmp_path, '["triton"]')
    assert code == ExitCode.NO_TOOLS
    assert 'search.languages has "triton", which needs an NVIDIA GPU' in said and '"cpp"' in said


def test_a_gpu_runs_triton_but_no_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceFact("gpu", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132)
    assert "needs a CPU" in (cannot_run(["cpp"], gpu) or "")
    monkeypatch.setattr("engine.search.problem_loader.find_spec", lambda name: None)
    assert "pip install triton" in (cannot_run(["cuda", "triton"], gpu) or "")
    monkeypatch.setattr("engine.search.problem_loader.find_spec", lambda name: object())
    assert cannot_run(["cuda", "triton", "python"], gpu) is None


def test_a_module_that_imports_triton_is_triton() -> None:
    assert language_of_file(".py", "import torch\nimport triton\n") == "triton"
    assert language_of_file(".py", "import torch, triton\n") == "triton"
    assert language_of_file(".py", "import torch\n# no import triton\nimport tritonic\n") == "py"
    assert language_of_file(".cu", "// import triton\n") == "cu"
