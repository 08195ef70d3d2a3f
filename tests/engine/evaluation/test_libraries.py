"""Who leaves the work to a library is found out, however it is called; who only uses memory and views is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.evaluation.build import build
from engine.evaluation.device import JudgeDevice
from engine.evaluation.libraries import Libraries, named_in
from engine.evaluation.rejected import Rejected
from engine.evaluation.runner.operators import working_operators
from engine.evaluation.sandbox import Limits, Runner
from engine.evaluation.trials import JudgedProblem
from engine.problem.header import derive_header
from engine.problem.inspect import inspect_file
from engine.problem.spec import Form
from tests.engine.evaluation.conftest import PROBLEM, Bench
from tests.engine.evaluation.kernels import softmax
from tests.engine.evaluation.modules import softmax as module_softmax

C_SOFTMAX = """
import torch
import kernel_tui

SOURCE = r'''
#include <cmath>
extern "C" int softmax(const float* x, float* out, long long rows, long long columns) {
    for (long long r = 0; r < rows; ++r) {
        const float* row = x + r * columns;
        float top = row[0], sum = 0.0f;
        for (long long c = 1; c < columns; ++c) top = fmaxf(top, row[c]);
        for (long long c = 0; c < columns; ++c) sum += out[r * columns + c] = expf(row[c] - top);
        for (long long c = 0; c < columns; ++c) out[r * columns + c] /= sum;
    }
    return 0;
}
'''
library = kernel_tui.load_c(SOURCE, "cpp")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous().view(x.shape[0], -1)
        out = torch.empty_like(x)
        library.softmax(x, out, x.shape[0], x.shape[1])
        return out
"""


@pytest.fixture
def judge(bench_of: Callable[[Form], Bench]) -> Bench:
    return bench_of("cpp")


def named(source: str, directory: Path) -> list[str]:
    library, report = asyncio.run(build(source, "cpp", "", "", directory))
    assert library is not None, report.log
    return named_in(library)


def test_functions_of_a_library_are_named_by_its_symbols(tmp_path: Path) -> None:
    source = 'extern "C" void cblas_sgemm(); extern "C" int launch() { cblas_sgemm(); return 0; }'
    assert named(source, tmp_path) == ["cblas_sgemm"]


def test_libraries_that_it_could_open_are_named(tmp_path: Path) -> None:
    source = '#include <dlfcn.h>\nextern "C" int launch() { return dlopen("libopenblas.so.0", 2) != nullptr; }'
    assert named(source, tmp_path) == ["libopenblas.so.0"]


def test_words_alone_and_vector_mathematics_are_no_library(tmp_path: Path) -> None:
    source = """
    #include <cmath>
    #include <cstdio>
    extern "C" int launch(const float* x, float* y) {
        if (!x) puts("faster than libopenblas.so.0");
        #pragma omp parallel for simd
        for (int i = 0; i < 1000; ++i) y[i] = std::exp(x[i]);
        return 0;
    }"""
    assert named(source, tmp_path) == []


def test_a_library_opened_under_a_hidden_name_is_found_in_the_process(tmp_path: Path) -> None:
    made, _ = asyncio.run(build("int nothing;", "cpp", "", "", tmp_path, defines="nothing"))
    assert made is not None
    name = made.rename(tmp_path / "libopenblas.so.0")
    hidden = ",".join(str(byte ^ 0x55) for byte in str(name).encode())
    opens = {
        "outside": f"#include <dlfcn.h>\nstatic const unsigned char hidden[] = {{{hidden}}};",
        "before": """
            static void* opened = nullptr;
            char name[sizeof hidden + 1] = {};
            volatile unsigned char key = 0x55;  // or the compiler writes the name out
            for (unsigned i = 0; i < sizeof hidden; ++i) name[i] = hidden[i] ^ key;
            if (!opened) opened = dlopen(name, RTLD_LAZY);
            if (!opened) return 3;
        """,
    }
    (tmp_path / "problem.py").write_text(PROBLEM)
    spec = inspect_file(tmp_path / "problem.py", "problem")
    kernel, report = asyncio.run(build(softmax("cpp", **opens), "cpp", derive_header(spec, "cpp"), "", tmp_path))
    assert kernel is not None, report.log
    judged, libraries = JudgedProblem(spec, JudgeDevice("cpu", 1), 3), Libraries(kernel, refuse=True)
    # With isolation it could read no file there.
    with Runner("cpu", Limits(isolate=False), lambda: False) as runner:
        libraries.look_at_files()
        libraries.before(runner)
        runner.load(kernel, judged)
        libraries.look_at_process(runner)
        runner.call([0])
        with pytest.raises(Rejected, match=r"libopenblas\.so\.0"):
            libraries.look_at_process(runner)
    judged.close()


def test_the_judge_sees_what_is_mapped_into_an_isolated_process(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    spec = inspect_file(tmp_path / "problem.py", "problem")
    kernel, report = asyncio.run(build(softmax("cpp"), "cpp", derive_header(spec, "cpp"), "", tmp_path))
    assert kernel is not None, report.log
    judged = JudgedProblem(spec, JudgeDevice("cpu", 1), 3)
    with Runner("cpu", Limits(), lambda: False) as runner:
        runner.load(kernel, judged)
        mapped = runner.mapped()
    judged.close()
    assert mapped is not None and any(name.startswith("libc.so") for name in mapped)


def test_a_module_that_calls_the_operator_itself_does_not_count(judge: Bench) -> None:
    verdict = judge.judge(module_softmax(), "py")
    assert (verdict.status, verdict.pattern) == ("library", "calls a library"), verdict.reason
    assert "calls PyTorch's operators: aten::_softmax" in verdict.reason
    assert 'evaluation.libraries = "label"' in verdict.reason


def test_a_module_with_a_kernel_of_its_own_counts(judge: Bench) -> None:
    verdict = judge.judge(C_SOFTMAX, "py")
    assert verdict.correct, verdict.reason
    assert next(check for check in verdict.checks if check.name == "libraries").detail == "none found"
    assert verdict.output_tail == ""


def test_a_module_that_holds_the_profiler_itself_hides_nothing(judge: Bench) -> None:
    held = "held = torch.autograd.profiler.profile()\nheld.__enter__()"
    verdict = judge.judge(module_softmax(top=held), "py")
    assert verdict.status in ("library", "forbidden") and verdict.pattern == "calls a library", verdict.reason


def test_a_module_may_keep_some_of_the_models_operators(judge: Bench, tmp_path: Path) -> None:
    problem = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x @ x.t())

def get_inputs():
    return [torch.randn(200, 100)]

def get_init_inputs():
    return []
"""
    judge.open(problem, "product", tmp_path)
    source = """
import torch
from kernel_tui import load_c

library = load_c('extern "C" int relu(float* x, long long n) {'
                 ' for (long long i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0 : x[i]; return 0; }', "cpp")

class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = x @ x.t()
        library.relu(out, out.numel())
        return out
"""
    verdict = judge.judge(source, "py")
    assert verdict.correct, verdict.reason
    assert "calls PyTorch's aten::mm beside its own kernels" in verdict.flags
    instead = source.replace("library.relu(out, out.numel())", "out = out.clamp(min=0)")
    verdict = judge.judge(instead, "py")
    assert verdict.pattern == "calls a library" and "aten::clamp" in verdict.reason


def test_who_is_given_the_models_weights_calls_no_library_by_that(judge: Bench, tmp_path: Path) -> None:
    problem = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(100))

    def forward(self, x):
        return x * self.gain

def get_inputs():
    return [torch.randn(200, 100)]
"""
    judge.open(problem, "scaled", tmp_path)
    source = """
import torch
from kernel_tui import load_c

library = load_c('extern "C" int scale(const float* x, const float* gain, float* out, long long n, long long columns) {'
                 ' for (long long i = 0; i < n; ++i) out[i] = x[i] * gain[i % columns]; return 0; }', "cpp")

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(100))

    def forward(self, x):
        out = torch.empty_like(x)
        library.scale(x, self.gain, out, x.numel(), x.shape[1])
        return out
"""
    verdict = judge.judge(source, "py")
    assert verdict.correct, verdict.reason


def test_torch_compile_is_called_by_its_name(judge: Bench) -> None:
    verdict = judge.judge(module_softmax(after="self.later = torch.compile"), "py")
    assert "torch.compile" in verdict.reason and verdict.pattern == "calls a library"


def test_only_operators_that_compute_are_named() -> None:
    x = torch.randn(8, 8)

    def call() -> torch.Tensor:
        made = torch.empty_like(x).copy_(x.t()).view(64).half().float()
        return torch.nn.functional.linear(torch.cat([made, made]), torch.zeros(3, 128))

    assert working_operators(call) in (["aten::addmv_"], ["aten::mv"], ["aten::addmv"], ["aten::mm"])
