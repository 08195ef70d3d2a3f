"""The judge detects kernels that delegate work to a library, however they call it, but accepts memory and view
operators."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.evaluation.build.compilers import build
from engine.evaluation.correctness.trials import JudgedProblem
from engine.evaluation.inspect.library_calls import Libraries, named_in
from engine.evaluation.judge_device import JudgeDevice
from engine.evaluation.rejection import Rejected
from engine.evaluation.sandbox.resource_limits import Limits
from engine.evaluation.sandbox.runner import Runner
from engine.problem.c_header import derive_header
from engine.problem.inspection import inspect_file
from engine.problem.spec import Language
from tests.engine.evaluation.conftest import PROBLEM, Bench
from tests.engine.evaluation.kernels import softmax
from tests.engine.evaluation.modules import softmax as module_softmax

pytestmark = pytest.mark.serial  # shares of a call's time decide

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
def judge(bench_of: Callable[[Language], Bench]) -> Bench:
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
    # with isolation, it could not read a file there
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
    assert "PyTorch's softmax" in verdict.reason
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


PRODUCT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y)

def get_inputs():
    return [torch.randn(300, 400), torch.randn(400, 200)]
"""
SORT = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x, dim=1)[0]

def get_inputs():
    return [torch.randn(200, 1000)]
"""
SGEMM = """
import ctypes
from pathlib import Path

def sgemm(package, file, name, integer, x, y):
    function = ctypes.CDLL(str(next(Path(package.__file__).parents[1].rglob(file))))[name]
    rows, columns, inner = x.shape[0], y.shape[1], x.shape[1]
    out, as_it_is, one, zero = torch.empty(rows, columns), ctypes.c_char(b"N"), ctypes.c_float(1), ctypes.c_float(0)
    arguments = [as_it_is, as_it_is, integer(columns), integer(rows), integer(inner), one, y, integer(columns)]
    arguments += [x, integer(inner), zero, out, integer(columns)]
    function(*[ctypes.c_void_p(a.data_ptr()) if torch.is_tensor(a) else ctypes.byref(a) for a in arguments])
    return out.relu_()
"""
CALLS = {
    "numpy sorts": (SORT, "", "return torch.from_numpy(numpy.sort(x.numpy(), axis=1))", "numpy ("),
    "numpy multiplies": (
        PRODUCT,
        "",
        "return torch.from_numpy(numpy.maximum(x.numpy() @ y.numpy(), 0))",
        "openblas|numpy (",
    ),
    "numpy's BLAS through ctypes": (
        PRODUCT,
        SGEMM,
        "return sgemm(numpy, 'libscipy_openblas*', 'scipy_sgemm_64_', ctypes.c_int64, x, y)",
        "scipy_sgemm_64_ in libscipy_openblas",
    ),
    "MKL through ctypes": (
        PRODUCT,
        SGEMM,
        "return sgemm(torch, 'libtorch_cpu.so', 'sgemm_', ctypes.c_int, x, y)",
        "sgemm_ in libtorch_cpu.so",
    ),
    "oneDNN": (
        PRODUCT,
        "",
        "return torch.ops.mkldnn._linear_pointwise(x, y.t().contiguous(), None, 'relu', [], '')",
        "mkldnn::_linear_pointwise",
    ),
    "a thread": (
        PRODUCT,
        "import threading",
        """
        made = []
        thread = threading.Thread(target=lambda: made.append(torch.relu(x @ y)))
        thread.start()
        thread.join()
        return made[0]
        """,
        "PyTorch's matmul|PyTorch's mm",
    ),
    "a thread that lives": (
        PRODUCT,
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)",
        "return pool.submit(lambda: torch.relu(x @ y)).result()",
        "PyTorch's matmul|PyTorch's mm",
    ),
    "TorchScript": (
        PRODUCT,
        "@torch.jit.script\ndef scripted(x, y):\n    return torch.relu(x @ y)",
        "return scripted(x, y)",
        "PyTorch's matmul|PyTorch's mm",
    ),
    "operators with out=": (
        PRODUCT,
        "",
        """
        out = torch.empty(300, 200)
        torch.mm(x, y, out=out)
        return torch.clamp(out, min=0, out=out)
        """,
        "PyTorch's matmul|PyTorch's mm",
    ),
}
MODULE = """
import numpy
import torch
{top}

class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        out = self.work(*inputs)
        {after}
        return out

    def work(self, x, y=None):
        {work}
"""
BESIDE = {
    "alone": ("", "pass"),
    "beside a kernel of no use": (
        """
from kernel_tui import load_c
touching = load_c('extern "C" int touch(float* x) { x[0] += 0; return 0; }', "cpp")
        """,
        "touching.touch(out)",
    ),
}
EVERYDAY_BESIDE = ("numpy sorts", "MKL through ctypes", "a thread", "operators with out=")
"""Kernels that ``make test`` judges beside a useless kernel with a slow build: calls of NumPy, of a BLAS in a thread,
and of operators."""
has_mkl = hasattr(ctypes.CDLL(torch._C.__file__), "sgemm_")


@pytest.mark.parametrize(
    ("call", "beside"),
    [
        pytest.param(call, beside, marks=[] if beside == "alone" or call in EVERYDAY_BESIDE else pytest.mark.gallery)
        for call in CALLS
        for beside in BESIDE
    ],
)
def test_work_that_a_library_does_is_named(judge: Bench, tmp_path: Path, call: str, beside: str) -> None:
    problem, top, work, named = CALLS[call]
    if call == "MKL through ctypes" and not has_mkl:
        pytest.skip("this PyTorch comes without a BLAS that it exports")
    judge.open(problem, "product" if problem is PRODUCT else "sort", tmp_path)
    kernel, after = BESIDE[beside]
    verdict = judge.judge(MODULE.format(top=f"{top}\n{kernel}", work=work, after=after), "py")
    assert (verdict.status, verdict.pattern) == ("library", "calls a library"), (verdict.status, verdict.reason)
    assert any(name in verdict.reason for name in named.split("|")), verdict.reason


def test_a_kernel_that_is_given_the_models_weights_calls_no_library_by_that(judge: Bench, tmp_path: Path) -> None:
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


FORGED = """
import sys

wire = sys.modules.get("engine.evaluation.sandbox.inside.wire")
if wire is not None:
    honest = wire.send

    def send(sock, message, descriptors=()):
        if message.get("ran"):
            message = message | {"ran": message["ran"] | {"operators": []}}
        return honest(sock, message, descriptors)

    wire.send = send
"""


def test_operators_that_are_left_out_of_the_report_are_seen_by_their_code(judge: Bench, tmp_path: Path) -> None:
    judge.open(PRODUCT, "product", tmp_path)
    kernel, after = BESIDE["beside a kernel of no use"]
    verdict = judge.judge(MODULE.format(top=FORGED + kernel, work="return torch.relu(x @ y)", after=after), "py")
    assert verdict.pattern == "calls a library" and "bypassing its operators" in verdict.reason, (
        verdict.status,
        verdict.reason,
    )


ATTENTION = """
import torch

class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v

def get_inputs():
    return [torch.randn(8, 64, 64) for _ in range(3)]
"""
OWN_ATTENTION = """
import torch
from kernel_tui import load_c

kernels = load_c(r'''
#include <cmath>
extern "C" int attention(const float* q, const float* k, const float* v, float* out, long long heads, long long rows,
                         long long width) {
    for (long long at = 0; at < heads * rows; ++at) {
        const long long head = at / rows * rows;
        float scores[1024], top = -INFINITY, sum = 0.0f;
        for (long long r = 0; r < rows; ++r) {
            scores[r] = 0.0f;
            for (long long c = 0; c < width; ++c) scores[r] += q[at * width + c] * k[(head + r) * width + c];
            top = fmaxf(top, scores[r]);
        }
        for (long long r = 0; r < rows; ++r) sum += scores[r] = expf(scores[r] - top);
        for (long long c = 0; c < width; ++c) out[at * width + c] = 0.0f;
        for (long long r = 0; r < rows; ++r)
            for (long long c = 0; c < width; ++c) out[at * width + c] += scores[r] / sum * v[(head + r) * width + c];
    }
    return 0;
}''', "cpp")


class ModelNew(torch.nn.Module):
    def forward(self, q, k, v):
        q, out = q * 0.125, torch.empty_like(q)
        kernels.attention(q, k, v, out, *q.shape)
        return out
"""
OWN_SOFTMAX_OF_DOUBLE = C_SOFTMAX.replace("return out", "out.mul_(2.0)\n        return out")


def test_a_cheap_step_of_pytorchs_beside_own_kernels_is_a_remark(judge: Bench, tmp_path: Path) -> None:
    doubled = PROBLEM.replace("torch.softmax(x, dim=1)", "torch.softmax(x, dim=1) * 2.0")
    judge.open(doubled, "doubled", tmp_path)
    verdict = judge.judge(OWN_SOFTMAX_OF_DOUBLE, "py")
    assert verdict.correct, verdict.reason
    assert "the module calls PyTorch's mul_() in addition to its own kernels" in verdict.flags
    judge.open(ATTENTION, "attention", tmp_path)
    verdict = judge.judge(OWN_ATTENTION, "py")
    assert verdict.correct, verdict.reason
    assert "the module calls PyTorch's mul() in addition to its own kernels" in verdict.flags


def test_arrays_that_only_hold_shapes_call_no_library(judge: Bench) -> None:
    source = C_SOFTMAX.replace("import torch\n", "import numpy\nimport torch\n", 1).replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.sizes = numpy.sort(numpy.array([3, 1, 2])).astype(numpy.int64)\n\n    def forward",
    )
    verdict = judge.judge(source, "py")
    assert verdict.correct, verdict.reason
    assert next(check for check in verdict.checks if check.name == "libraries").detail == "none found"


def test_where_libraries_are_only_labelled_the_verdict_names_them(tmp_path: Path) -> None:
    bench = Bench("cpp", tmp_path, SORT, "sort", max_pairs=20, libraries="label")
    try:
        _, top, work, named = CALLS["numpy sorts"]
        verdict = bench.judge(MODULE.format(top=top, work=work, after="pass"), "py")
        assert verdict.correct, verdict.reason
        assert any("calls a library" in flag and named in flag for flag in verdict.flags), verdict.flags
    finally:
        bench.close()
