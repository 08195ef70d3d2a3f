"""``.py`` kernels get the same judge, sandbox and messages as C kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.devices.hardware import discover
from engine.evaluation.judge_policy import POLICY
from engine.problem.spec import Language
from engine.session.records.verdict import Verdict
from tests.engine.evaluation.conftest import Bench
from tests.engine.evaluation.modules import softmax


class ModuleBench(Bench):
    """Return a bench whose kernels are modules, on the device of ``language``."""

    def judge(self, source: str, language: Language | None = None) -> Verdict:
        return super().judge(source, language or "py")


@pytest.fixture(scope="module", params=["cpp", pytest.param("cu", marks=pytest.mark.gpu)])
def opened_bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleBench]:
    language: Language = request.param
    if language == "cu" and (shutil.which("nvcc") is None or not any(device.kind == "cuda" for device in discover())):
        pytest.skip("needs an NVIDIA GPU and nvcc")
    # These kernels test the judge, so they compute with PyTorch's operators.
    bench = ModuleBench(language, tmp_path_factory.mktemp(f"modules_{language}"), libraries="label", max_pairs=20)
    yield bench
    bench.close()


@pytest.fixture
def bench(opened_bench: ModuleBench) -> ModuleBench:
    opened_bench.go_back()
    return opened_bench


CASES = {
    "loops forever": ({"after": "while True: pass"}, "timeout", "did not answer within"),
    "crashes": ({"after": "ctypes.string_at(8)"}, "crashed", "SIGSEGV"),
    "allocates without bound": (
        {"top": "kept = []", "after": "while True: kept.append(torch.empty(1 << 26))"},
        ("memory", "crashed"),
        "",
    ),
    "forks": ({"after": "os.fork()"}, "forbidden", "start a process"),
    "executes a program": ({"after": "import subprocess; subprocess.run(['/bin/true'])"}, "forbidden", "process"),
    "writes its inputs": ({"after": "x[0, 0] = 1"}, "wrong", "wrote to its input x"),
    "prints 100 MB": ({"after": "for _ in range(1000000): print('x' * 100)"}, "forbidden", "printed more than 1 MiB"),
    "raises": ({"after": "raise ValueError('too wide')"}, "crashed", "ValueError: too wide (line"),
    "raises at import": ({"top": "1 / 0"}, "build_error", "ZeroDivisionError: division by zero (line 4)"),
    "raises in its constructor": ({"init": "self.missing()"}, "build_error", "no attribute 'missing' (line"),
    "exits": ({"after": "os._exit(0)"}, "crashed", "exited with code 0"),
    "returns another dtype": (
        {"after": "out = out.double()"},
        "wrong",
        "out is float64, but the problem's output is float32",
    ),
    "returns another shape": ({"after": "out = out[1:]"}, "wrong", "out has shape (499, 1003)"),
    "returns nothing": ({"after": "out = None"}, "wrong", "forward returned 0 tensors, but the problem has 1"),
    "returns a subclass": (
        {"top": "class Lazy(torch.Tensor): pass", "after": "out = out.as_subclass(Lazy)"},
        "wrong",
        "out is a kernel.Lazy, not exactly a torch.Tensor",
    ),
    "is wrong": ({"after": "out[0, 5] *= 2"}, "wrong", "first is at [0, 5]"),
    "caches by the input's address": (
        {"top": "known = {}", "after": "out = known.setdefault(x.data_ptr(), out)"},
        "wrong",
        "differ by more than",
    ),
    "replays its first output": (
        {"top": "known = []", "after": "known.append(out); out = known[0]"},
        "wrong",
        "differ by",
    ),
    "lets a thread write later": (
        {
            "after": "real, out = out, torch.zeros_like(out)\n"
            "threading.Thread(target=lambda: (time.sleep(0.01), out.copy_(real))).start()"
        },
        "wrong",
        "differ by more than",
    ),
    "works when its output is copied": (
        {
            "top": "copy = torch.Tensor.copy_",
            "init": "class Late(torch.Tensor):\n    pass\nself.late = Late",
            "after": "out = out.as_subclass(self.late)",
        },
        "wrong",
        "not exactly a torch.Tensor",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_hostile_module_gets_its_verdict(bench: ModuleBench, name: str) -> None:
    code, status, reason = CASES[name]

    verdict = bench.judge(softmax(**code))  # type: ignore[arg-type]

    assert verdict.status in ([status] if isinstance(status, str) else status), (verdict.status, verdict.reason)
    assert reason in verdict.reason


def test_the_next_one_is_unaffected(bench: ModuleBench) -> None:
    verdict = bench.judge(softmax())
    assert verdict.correct, verdict.reason
    assert "seccomp" in verdict.sandbox


@pytest.mark.serial
@pytest.mark.usefixtures("quiet_machine")
def test_a_patched_timer_does_not_help(bench: ModuleBench) -> None:
    lies = "time.perf_counter = lambda: 0.0\ntorch.cuda.Event.elapsed_time = lambda *_: 0.001\n"
    lies += "torch.equal = lambda *_: True"
    verdict = bench.judge(softmax(top=lies, after="out = torch.softmax(x, dim=1)"))
    assert verdict.correct, verdict.reason
    # It does the work twice. A judge that trusted the clock would see a speedup of thousands.
    assert verdict.speedup is not None and verdict.speedup < 10


def test_files_network_and_the_judge_are_out_of_reach(bench: ModuleBench) -> None:
    look = """
import socket
def reached(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True
assert not reached(lambda: open("/etc/passwd").read())
assert not reached(lambda: open("/tmp/kernel-was-here", "w"))
assert not reached(lambda: socket.socket())
assert not reached(lambda: os.kill(os.getppid(), 0))
import gc
assert not any(str(type(one).__module__).startswith("kernel" "_tui_problem") for one in gc.get_objects())
"""  # written so that it does not look like a build
    verdict = bench.judge(softmax(top=look))
    assert verdict.correct, verdict.reason


LINEAR = """
import torch
class {name}(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.{layer} = torch.nn.Linear(width, 64)
        {more}
    def forward(self, x):
        return {expression}
def get_inputs():
    return [torch.randn(200, 96)]
def get_init_inputs():
    return [96]
"""


def linear(expression: str, *, name: str = "ModelNew", layer: str = "lin", more: str = "pass") -> str:
    return LINEAR.format(name=name, layer=layer, more=more, expression=expression)


def test_weights_live_in_the_judges_buffers_or_are_drawn_alike(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(linear("torch.relu(self.lin(x))", name="Model"), "linear", tmp_path)

    same = bench.judge(linear("self.lin(x).clamp(min=0)"))
    renamed = bench.judge(linear("self.other(x).clamp(min=0)", layer="other"))
    keeps = bench.judge(
        linear(
            "(x @ self.copy + self.lin.bias).relu()",
            more="self.register_buffer('copy', self.lin.weight.detach().t().contiguous(), persistent=False)",
        )
    )
    other = bench.judge(linear("self.lin(x).clamp(min=0)", more="torch.nn.init.zeros_(self.lin.bias)"))

    assert same.correct, same.reason
    assert "the state dicts match" in same.checks[0].detail
    assert renamed.correct, renamed.reason
    assert "the state dicts differ" in renamed.checks[0].detail
    assert keeps.status == "wrong", "it computes with weights that have changed since"
    assert other.correct, "values come from the judge, whatever the constructor did"
    bad = bench.judge(linear("self.other(x).clamp(min=0)", layer="other", more="torch.nn.init.zeros_(self.other.bias)"))
    assert bad.status == "wrong"

    own: dict[str, tuple[Language, str]] = {
        "v1": ("py", linear("self.other(x).clamp(min=0)", layer="other")),
        "v2": ("py", linear("torch.relu(self.lin(x))")),
    }
    standings = bench.run(bench.evaluator.runoff(bench.problem, own))
    assert {row.variant for row in standings} == {"v1", "v2"}, "each right with the weights that one of them keeps"  # type: ignore[attr-defined]


def test_random_models_draw_the_same_numbers(bench: ModuleBench, tmp_path: Path) -> None:
    source = linear("torch.nn.functional.dropout(self.lin(x), 0.5) + torch.rand(64, device=x.device)", name="Model")
    bench.open(source, "dropout", tmp_path)
    assert bench.problem.languages == ("py", "triton")

    good = bench.judge(source.replace("class Model(", "class ModelNew("))
    bad = bench.judge(linear("self.lin(x) + 0.5"))

    assert good.correct, good.reason
    assert bad.status == "wrong"


BATCH_NORM = """
import torch
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = torch.nn.BatchNorm1d(96)
    def forward(self, x, scale, pair):
        {update}
        return self.bn(x) * scale, pair["a"] + pair["b"]
def get_inputs():
    return [torch.randn(200, 96), 2.0, {{"a": torch.rand(5), "b": torch.arange(5)}}]
def get_init_inputs():
    return []
"""


def test_buffers_that_the_model_writes_and_nested_inputs(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(BATCH_NORM.format(name="Model", update="pass"), "batchnorm", tmp_path)

    good = bench.judge(BATCH_NORM.format(name="ModelNew", update="pass"))
    replaced = bench.judge(
        BATCH_NORM.format(name="ModelNew", update="self.bn.running_mean = self.bn.running_mean * 1.0")
    )
    stale = bench.judge(BATCH_NORM.format(name="ModelNew", update="self.bn.momentum = 0.0"))

    assert good.correct, good.reason
    assert replaced.correct, replaced.reason
    assert stale.status == "wrong" and "bn_running" in stale.reason


INLINE = """
import ctypes, torch
from torch.utils.cpp_extension import load_inline
path = load_inline("half", cpp_sources='extern "C" float half_of(float x) {{ return {value}; }}',
                   no_implicit_headers=True, is_python_module=False)
half_of = ctypes.CDLL({path}).half_of
half_of.restype, half_of.argtypes = ctypes.c_float, [ctypes.c_float]
"""


def test_inline_code_is_built_before_the_device_is_taken(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 0.5\n"
        "def get_inputs():\n    return [torch.randn(1000, 100)]\ndef get_init_inputs():\n    return []\n",
        "half",
        tmp_path,
    )
    model = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * half_of(1.0)\n"

    good = bench.judge(INLINE.format(value="x / 2", path="path") + model + f"# {tmp_path}\n")
    bad = bench.judge(INLINE.format(value="undeclared", path="path") + model)
    again = bench.judge(INLINE.format(value="x / 2", path="path") + model + f"# {tmp_path}\n")

    assert good.correct, good.reason
    assert good.build is not None and good.build.seconds > 0.5
    assert bad.status == "build_error" and "undeclared" in bad.reason
    assert again.correct and again.build is not None and again.build.cached


def test_what_is_built_too_late_is_told_so(bench: ModuleBench) -> None:
    late = "from torch.utils.cpp_extension import load_inline"
    verdict = bench.judge(softmax(top=late, before='load_inline("late", cpp_sources="", no_implicit_headers=True)'))
    assert verdict.status == "crashed" and "did not build" in verdict.reason


def test_a_kernel_may_compile_in_its_first_call(bench: ModuleBench) -> None:
    slow = f"if not known:\n    known.append(True)\n    time.sleep({POLICY.sandbox.call_s + 0.5})"
    compiles = {"top": "known, compiler = [], torch.compile", "after": slow}
    assert bench.judge(softmax(**compiles)).correct
    verdict = bench.judge(softmax(**compiles | {"top": "known = []"}))
    assert verdict.status == "timeout" and "(call)" in verdict.reason


CPP = """
extern "C" int scale(const float* x, float* out, long long count, float by) {
    #pragma omp parallel for simd
    for (long long i = 0; i < count; i++) out[i] = x[i] * by;
    return 0;
}
"""
CU = """
__global__ void work(const float* x, float* out, long long count, float by) {
    long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < count) out[i] = x[i] * by;
}
extern "C" int scale(const float* x, float* out, long long count, float by, cudaStream_t stream) {
    work<<<(count + 255) / 256, 256, 0, stream>>>(x, out, count, by);
    return cudaGetLastError();
}
"""


def test_plain_c_is_built_in_seconds_by_the_helper(bench: ModuleBench, tmp_path: Path) -> None:
    text = CU if bench.language == "cu" else CPP
    bench.open(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 0.5\n"
        "def get_inputs():\n    return [torch.randn(1000, 100)]\ndef get_init_inputs():\n    return []\n",
        "scaled",
        tmp_path,
    )
    module = (
        f"import torch\nfrom kernel_tui import load_c\nkernels = load_c('''{text}''', {bench.language!r})\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        out = torch.empty_like(x)\n"
        "        kernels.scale(x, out, x.numel(), 0.5)\n        return out\n"
    )

    good = bench.judge(module)
    bad = bench.judge(module.replace("* by", "* undeclared"))

    assert good.correct, good.reason
    assert bad.status == "build_error" and "undeclared" in bad.reason


def test_a_module_and_a_kernel_stand_in_one_runoff(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 0.5\n"
        "def get_inputs():\n    return [torch.randn(1000, 1000)]\ndef get_init_inputs():\n    return []\n",
        "both",
        tmp_path,
    )
    device = {
        "cpp": 'extern "C" int launch(const float* x, float* out, void*) {\n#pragma omp parallel for simd\n'
        "for (long long i = 0; i < x_numel; i++) out[i] = x[i] * 0.5f;\nreturn 0; }",
        "cu": "__global__ void work(const float* x, float* out) { long long i = blockIdx.x * 256LL + threadIdx.x; "
        'if (i < x_numel) out[i] = x[i] * 0.5f; }\nextern "C" int launch(const float* x, float* out, void*, '
        "cudaStream_t s) { work<<<(x_numel + 255) / 256, 256, 0, s>>>(x, out); return 0; }",
    }[bench.language]
    module = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 0.5\n"
    kernels: dict[str, tuple[Language, str]] = {"v1": (bench.language, device), "v2": ("py", module)}

    standings = bench.run(bench.evaluator.runoff(bench.problem, kernels))

    assert {row.variant for row in standings} == {"v1", "v2"}  # type: ignore[attr-defined]


PERMUTED = """
import torch
class {name}(torch.nn.Module):
    def forward(self, x):
        return {value}, (x + 1).transpose(0, 1)
def get_inputs():
    return [torch.randn(512, 1024)]
def get_init_inputs():
    return []
"""


def test_views_are_read_as_the_reference_leaves_them_and_others_written_out(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(PERMUTED.format(name="Model", value="x * 2"), "permuted", tmp_path)
    same = bench.judge(PERMUTED.format(name="ModelNew", value="x + x"))
    other = bench.judge(PERMUTED.format(name="ModelNew", value="(x.t() * 2).t()"))
    sliced = bench.judge(PERMUTED.format(name="ModelNew", value="torch.cat([x, x], 1)[:, :1024] * 2"))
    bench.go_back()
    for verdict in (same, other, sliced):
        assert verdict.correct, (verdict.status, verdict.reason)


def test_what_a_module_returns_is_not_copied_by_its_runner(bench: ModuleBench) -> None:
    """This holds on a CPU, where patching the copy has no effect."""
    name = "engine.evaluation.sandbox.inside.python_kernel.module"
    patched = f"runner = sys.modules.get({name!r})\nif runner: runner._COPY = print"
    verdict = bench.judge(softmax(top="import sys\n" + patched))
    assert verdict.correct == (bench.language == "cpp"), (verdict.status, verdict.reason)


KEY_CACHE = """
import torch
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.randn(4, 64, 16))
        self.register_buffer("place", torch.tensor([20]))
    def forward(self, query, key):
        self.keys.index_copy_(1, self.place, key[:, None])  # fails if place is out of bounds
        self.place += 1
        return torch.einsum("hd,htd->ht", query, self.keys)
def get_inputs():
    return [torch.randn(4, 16) for _ in range(2)]
def get_init_inputs():
    return []
"""


def test_a_kernel_that_appends_to_a_cache_is_called_once_per_load(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(KEY_CACHE.format(name="Model"), "cache", tmp_path)
    verdict = bench.judge(KEY_CACHE.format(name="ModelNew"))
    bench.go_back()
    assert verdict.correct, verdict.reason


ABS = """
import torch
class {name}(torch.nn.Module):
    def forward(self, x):
        {body}
def get_inputs():
    return [torch.randn(16, 256)]
def get_init_inputs():
    return []
"""


def test_a_module_that_returns_the_same_memory_in_every_call_is_told_so(bench: ModuleBench, tmp_path: Path) -> None:
    """The judge notices it in a batch, so the calls must be short on a busy machine, too."""
    bench.open(ABS.format(name="Model", body="return x.abs()"), "abs", tmp_path)
    reuses = "self.kept = torch.abs(x, out=getattr(self, 'kept', None)); return self.kept"
    verdict = bench.judge(ABS.format(name="ModelNew", body=reuses))
    assert verdict.correct == (bench.language == "cu"), "on a GPU, the runner copies each result"
    assert bench.language == "cu" or "forward returned the same memory in two calls" in verdict.reason


def test_a_module_may_return_its_buffers_and_inputs(bench: ModuleBench, tmp_path: Path) -> None:
    source = KEY_CACHE.replace("return torch", "return query, self.keys, torch").replace("self.place += 1", "pass")
    bench.open(source.format(name="Model"), "returns", tmp_path)
    verdict = bench.judge(source.format(name="ModelNew"))
    bench.go_back()
    assert verdict.correct, verdict.reason


def test_an_empty_output_beside_another_is_no_obstacle(bench: ModuleBench, tmp_path: Path) -> None:
    source = MANY_OUTPUTS.replace("[x + i for i in range(63)]", "x[:0].view(0, 7).clone(), x * 2")
    bench.open(source.format(name="Model"), "empty", tmp_path)
    verdict = bench.judge(source.format(name="ModelNew"))
    bench.go_back()
    assert verdict.correct, verdict.reason


MANY_OUTPUTS = """
import torch
class {name}(torch.nn.Module):
    def forward(self, x):
        return [x + i for i in range(63)]
def get_inputs():
    return [torch.randn(256)]
def get_init_inputs():
    return []
"""


def test_many_outputs_are_no_work_beside_the_clock(bench: ModuleBench, tmp_path: Path) -> None:
    bench.open(MANY_OUTPUTS.format(name="Model"), "many", tmp_path)
    verdict = bench.judge(MANY_OUTPUTS.format(name="ModelNew"))
    assert verdict.correct, verdict.reason


@pytest.mark.serial
def test_a_busy_machine_makes_no_cheat_of_a_kernel(bench: ModuleBench, tmp_path: Path) -> None:
    """Launches of a short model take longer there, with or without the kernel."""
    bench.open(MANY_OUTPUTS.format(name="Model"), "many", tmp_path)
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        verdict = bench.judge(MANY_OUTPUTS.format(name="ModelNew"))
    finally:
        for process in spinning:
            process.kill()
            process.wait()
    assert verdict.correct or (verdict.status == "error" and "too busy" in verdict.reason), verdict.reason
