"""The second verdict: KernelBench's rules, applied to kernels that our judge accepts or rejects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.evaluation.correctness.kernelbench_rules import mismatch, not_applicable, speedup
from engine.problem.spec import Language, ProblemSpec, Role, TensorSpec
from engine.session.records import speedup_text
from engine.session.records.verdict import Verdict
from engine.session.records.verdict_text import kernelbench_words
from tests.engine.evaluation import modules
from tests.engine.evaluation.conftest import Bench
from tests.engine.evaluation.kernels import softmax
from tests.exploits.catalogue import HERE
from tests.exploits.sources import source

Judge = Callable[..., Verdict]

LOOP = """
#include <cstdint>
#include <unistd.h>
{outside}
extern "C" int launch({parameters}, void*) {{
    {before}
    for (long long i = 0; i < out_numel; ++i) {{ {body} }}
    return 0;
}}
"""


def loop(body: str, *, before: str = "", outside: str = "", parameters: str = "const float* x, float* out") -> str:
    return LOOP.format(body=body, before=before, outside=outside, parameters=parameters)


def problem(forward: str, inputs: str, init: str = "pass") -> str:
    arguments = ", ".join("xyz"[: inputs.count("torch.r")])
    return (
        "import torch\nfrom torch import nn\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n"
        f"    def forward(self, {arguments}):\n        {forward}\n"
        f"def get_inputs():\n    return [{inputs}]\ndef get_init_inputs():\n    return []\n"
    )


RELU = problem("return torch.relu(x)", "torch.rand(90, 1001)")
"""KernelBench's inputs lie between 0 and 1."""
SOFTMAX = problem("return torch.softmax(x, dim=1)", "torch.randn(100, 501)")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Judge a kernel on the CPU with a tolerance wider than KernelBench's. Problems are opened once."""
    directory = tmp_path_factory.mktemp("kernelbench")
    bench = Bench("cpp", directory, tolerance="crfm")
    opened: dict[str, ProblemSpec] = {}

    def on(source: str, kernel: str, language: Language = "cpp") -> Verdict:
        if source not in opened:
            bench.open(source, f"problem{len(opened)}", directory)
            opened[source] = bench.problem
        bench.problem = opened[source]
        return bench.judge(kernel, language)

    yield on
    bench.close()


def theirs(verdict: Verdict) -> str:
    assert verdict.kernelbench is not None, verdict
    return verdict.kernelbench.status


def test_a_right_kernel_is_accepted_by_both_and_has_both_speedups(judge: Judge) -> None:
    verdict = judge(SOFTMAX, softmax("cpp"))
    assert (verdict.status, theirs(verdict)) == ("correct", "correct"), verdict
    assert verdict.kernelbench is not None and verdict.kernelbench.speedup is not None and verdict.speedup is not None
    written = speedup_text.speedup(verdict.kernelbench.speedup)
    assert kernelbench_words(verdict.kernelbench) == f"correct, {written} (5 trials passed, atol = rtol = 0.0001)"
    assert 0 < verdict.stage_s["kernelbench"] < 1


def test_what_is_within_one_percent_only_is_wrong_for_them(judge: Judge) -> None:
    verdict = judge(RELU, loop("out[i] = x[i] > 0 ? x[i] * 1.003f : 0;"))
    assert (verdict.status, theirs(verdict)) == ("correct", "wrong"), verdict
    assert verdict.kernelbench is not None
    assert (
        kernelbench_words(verdict.kernelbench)
        == "wrong (trial 0: the output is not within atol = rtol = 0.0001; the largest difference is 0.003)"
    )


def test_what_is_right_for_inputs_as_drawn_only_is_correct_for_them(judge: Judge) -> None:
    verdict = judge(RELU, (HERE / "cpp" / "assumes_positive.cpp").read_text())
    assert (verdict.status, theirs(verdict)) == ("wrong", "correct"), verdict
    assert verdict.kernelbench is not None and verdict.kernelbench.speedup is None  # the kernel was not timed


def test_what_keeps_the_weights_of_its_first_call_is_correct_for_them(judge: Judge) -> None:
    folded = (HERE / "problems" / "folded.py").read_text()
    verdict = judge(folded, source("caches_weights", "cpp"))
    assert (verdict.pattern, theirs(verdict)) == ("wrong after its first calls", "correct"), verdict


def test_a_forgotten_clamp_is_not_called_a_change_after_the_first_calls(judge: Judge) -> None:
    kernel = loop(
        "out[i] = (x[i] - sum / out_numel) * scale[i % 1001];",
        before="double sum = 0; for (long long i = 0; i < out_numel; ++i) sum += x[i];",
        parameters="const float* x, const float* scale, float* out",
    )
    relative = "4 * (x - x.mean()).flatten().topk(20).values[-1]"  # No trial's inputs exceed this limit.
    for limit, pattern in (("12.0", "uses a property of the inputs"), (relative, "wrong only with outliers")):
        scale = "self.scale = nn.Parameter(torch.rand(1001) + 0.5)"
        clamped = problem(f"return torch.clamp(x - x.mean(), max={limit}) * self.scale", "torch.randn(90, 1001)", scale)
        verdict = judge(clamped, kernel)
        assert (verdict.pattern, theirs(verdict)) == (pattern, "correct"), verdict


def test_what_writes_past_its_output_is_correct_for_them(judge: Judge) -> None:
    verdict = judge(RELU, loop("out[i] = x[i] > 0 ? x[i] : 0;", before="out[out_numel] = 1;"))
    assert (verdict.status, theirs(verdict)) == ("out_of_bounds", "correct"), verdict


@pytest.mark.parametrize("body", ["out[i] = 0;", "if (i < 90000) out[i] = x[i] > 0 ? x[i] : 0;"])
def test_what_is_wrong_as_drawn_is_wrong_for_both(judge: Judge, body: str) -> None:
    verdict = judge(RELU, loop(body))
    assert (verdict.status, theirs(verdict)) == ("wrong", "wrong"), verdict


def test_a_library_call_is_correct_for_them(judge: Judge) -> None:
    verdict = judge(SOFTMAX, modules.softmax(), "py")
    assert (verdict.pattern, theirs(verdict)) == ("calls a library", "correct"), verdict


def test_a_crash_on_inputs_as_drawn_is_wrong_and_any_other_leaves_nobody_to_ask(judge: Judge) -> None:
    at_once = judge(RELU, loop("", before="__builtin_trap();"))
    assert (at_once.status, theirs(at_once)) == ("crashed", "wrong"), at_once
    later = judge(RELU, loop("out[i] = x[i] > 0 ? x[i] : 0;", before="if (x[0] < 0) __builtin_trap();"))
    assert (later.status, theirs(later)) == ("crashed", "not judged"), later
    assert later.kernelbench is not None and "already ended" in later.kernelbench.reason


def test_a_kernel_that_fails_without_a_crash_is_still_asked(judge: Judge) -> None:
    refuses = "for (long long i = 0; i < 999; ++i) if (x[i] < 0) return 7;"
    verdict = judge(RELU, loop("out[i] = x[i] > 0 ? x[i] : 0;", before=refuses))
    assert (verdict.status, theirs(verdict)) == ("crashed", "correct"), verdict


def test_a_slow_kernel_gets_fewer_trials(judge: Judge) -> None:
    verdict = judge(RELU, loop("out[i] = x[i];", before="usleep(120000);"))
    assert (verdict.status, theirs(verdict)) == ("wrong", "correct"), verdict
    assert verdict.kernelbench is not None
    assert re.match(r"the time limit allowed only [1-3] of 5 trials", verdict.kernelbench.reason), verdict


def test_a_kernel_that_does_not_build_has_one_verdict(judge: Judge) -> None:
    verdict = judge(RELU, "int launch(")
    assert verdict.status == "build_error" and verdict.kernelbench is None


@pytest.mark.parametrize(
    ("source", "kernel", "words"),
    [
        (
            problem("return x + 1, x * 2", "torch.randn(900)"),
            "const float* x, float* out0, float* out1|out0[i] = x[i] + 1; out1[i] = x[i] * 2;",
            "compares one output, but the model returns 2",
        ),
        (
            problem("return self.e(x)", "torch.randint(0, 9, (90,))", "self.e = nn.Embedding(9, 4)"),
            "const int64_t* x, const float* e, float* out|out[i] = e[x[i / 4] * 4 + i % 4];",
            "casts integers to floating point, which the model rejects",
        ),
        (
            problem("return x + 1", "torch.randint(0, 99, (900,))"),
            "const int64_t* x, int64_t* out|out[i] = x[i] + 1;",
            "the model returns torch.float32",
        ),
    ],
    ids=["two outputs", "indices", "integers out"],
)
def test_where_their_rules_say_nothing(judge: Judge, source: str, kernel: str, words: str) -> None:
    parameters, body = kernel.split("|")
    text = loop(body, parameters=parameters)
    verdict = judge(source, text.replace("out_numel", "out0_numel") if "out0" in text else text)
    assert (verdict.status, theirs(verdict)) == ("correct", "not applicable"), verdict
    assert verdict.kernelbench is not None and words in verdict.kernelbench.reason


def test_problems_of_which_their_rules_say_nothing() -> None:
    def why(*tensors: tuple[Role, str], module: bool = False, random: bool = False) -> str:
        made = tuple(TensorSpec(f"t{place}", role, dtype, (3,)) for place, (role, dtype) in enumerate(tensors))
        return not_applicable(ProblemSpec("p", "p", "p.py", "", made, random=random), module)

    inputs: tuple[Role, str] = ("input", "float32")
    out: tuple[Role, str] = ("output", "float32")
    assert why(inputs, ("parameter", "float32"), ("buffer", "int64"), out) == ""
    assert why(("input", "float16"), ("output", "float32")) == why(("input", "int64"), out) == ""
    assert "fp32, fp16 or bf16; the problem has float64" in why(("input", "float64"), out)
    assert "the problem has float16, float32" in why(inputs, ("parameter", "float16"), out)
    written = TensorSpec("x", "input", "float32", (3,), mutated=True)
    writes = ProblemSpec("p", "p", "p.py", "", (written, TensorSpec("out", "output", "float32", (3,))))
    assert "writes its input" in not_applicable(writes, False)
    assert "draws random numbers" in why(inputs, out, random=True)
    assert "integer inputs" in why(("input", "bool"), inputs, out, module=True)


def test_integers_that_the_model_takes_as_numbers(judge: Judge) -> None:
    source = problem("return x * y", "torch.randn(900), torch.rand(900) > 0.5")
    body = "out[i] = y[i] ? x[i] : 0;"
    verdict = judge(source, loop(body, parameters="const float* x, const bool* y, float* out"))
    assert (verdict.status, theirs(verdict)) == ("correct", "correct"), verdict


def test_buffers_go_on_from_one_trial_to_the_next(judge: Judge) -> None:
    init = "self.register_buffer('total', torch.zeros(900))"
    source = problem("self.total.mul_(0.9).add_(x); return x - self.total", "torch.randn(900)", init)
    parameters = "const float* x, float* total, float* out"
    right = loop("total[i] = total[i] * 0.9f + x[i]; out[i] = x[i] - total[i];", parameters=parameters)
    verdict = judge(source, right)
    assert (verdict.status, theirs(verdict)) == ("correct", "correct"), verdict
    forgets = loop("out[i] = x[i] - (total[i] * 0.9f + x[i]);", parameters=parameters)
    verdict = judge(source, forgets)
    assert verdict.status == "wrong" and verdict.kernelbench is not None, verdict
    assert verdict.kernelbench.status == "wrong" and "trial 1" in verdict.kernelbench.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_an_output_is_accepted_exactly_where_allclose_accepts_it(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    tolerance, said = 1e-4 if dtype == torch.float32 else 1e-2, set()
    for share in (0.0, 0.5, 0.89, 0.95, 0.999, 1.0, 1.001, 1.05, 2.0):
        for scale in (1e-6, 1.0, 1e3):
            expected = torch.randn(1000) * scale
            out = (expected + share * tolerance * (1 + expected.abs())).to(dtype)
            accepted = torch.allclose(expected.to(dtype), out, atol=tolerance, rtol=tolerance)
            assert (mismatch(expected.to(dtype), out, tolerance) == "") is accepted, (share, scale)
            said.add(accepted)
    assert dtype == torch.bool or said == {True, False}


def test_nan_and_infinity() -> None:
    finite, infinite, nan = (torch.tensor([1.0, value]) for value in (1.0, float("inf"), float("nan")))
    assert mismatch(infinite, infinite.clone(), 1e-4) == ""
    assert "largest difference is inf" in mismatch(infinite, finite, 1e-4)
    assert "never matches" in mismatch(nan, nan.clone(), 1e-4)
    assert mismatch(finite, nan, 1e-4)


def test_their_speedup_is_that_of_the_means() -> None:
    assert speedup([2.0, 4.0], [1.0, 1.0]) == 3.0
    assert speedup([], []) is None


def test_a_verdict_of_an_older_session_has_none() -> None:
    old = msgspec.json.decode(b'{"status":"correct","speedup":2.0}', type=Verdict)
    assert old.correct and old.kernelbench is None


def test_trials_are_drawn_anew_for_each_problem_that_is_opened(tmp_path: Path) -> None:
    from engine.evaluation.correctness.kernelbench import KernelBenchTrials
    from engine.evaluation.correctness.trials import JudgedProblem
    from engine.evaluation.judge_device import JudgeDevice
    from engine.problem.inspection import inspect_file

    file = tmp_path / "relu.py"
    file.write_text(RELU)
    drawn = []
    for _ in range(2):
        judged = JudgedProblem(inspect_file(file, "relu"), JudgeDevice("cpu", 1), 2)
        drawn.append([trial.inputs[0] for trial in KernelBenchTrials(judged, 1.0)])
        assert [len(list(KernelBenchTrials(judged, ms))) for ms in (1.0, 200.0, 9000.0)] == [5, 2, 1]
        judged.close()
    assert not any(torch.equal(one, other) for one in drawn[0] for other in drawn[1])
    assert all(one.min() >= 0 and one.max() <= 1 for one in drawn[0])
