"""Compare verdicts and times of the same kernels as ``.cu`` and as ``.py`` (KernelBench's ``ModelNew``).

    python benchmarks/forms.py [--device cuda|cpu] [--how load_inline|load_c|both] [--only NAME ...]

The script judges each of ten simple kernels twice: as a C source, and inside a ``ModelNew`` that calls the same source.
``torch.utils.cpp_extension.load_inline`` or ``kernel_tui.load_c`` builds the ``ModelNew``. With ``--how both``, the
script alternates between these two builders. A runoff then times both kernels side by side. The script prints one
table. Exit status 1: the verdicts differ, or runoff times above 0.1 ms differ by more than 3%. The script needs an idle
machine. ``--device cpu`` uses ``.cpp`` kernels and smaller sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import inspect_sources  # noqa: E402
from engine.problem.spec import Language, ProblemSpec  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402

How = Literal["load_inline", "load_c"]
ALLOWED, ABOVE_MS = 0.03, 0.1

PROBLEM = """
import torch
from torch import nn
from torch.nn import functional as F

{sizes}

class Model(nn.Module):
{model}

def get_inputs():
    return [{inputs}]

def get_init_inputs():
    return [{init}]
"""

# The same source runs on GPUs and CPUs. An item is the work of one block of LANES threads, or of one thread.
PRELUDE = {
    "cu": """
#define DEVICE __device__
#define LANE threadIdx.x
#define LANES 256
template <typename F>
__device__ float reduce(float value, F join) {
    __shared__ float partial[LANES];
    partial[LANE] = value;
    for (int half = LANES / 2; half; half /= 2) {
        __syncthreads();
        if (LANE < half) partial[LANE] = join(partial[LANE], partial[LANE + half]);
    }
    __syncthreads();
    value = partial[0];
    __syncthreads();
    return value;
}
struct Add { __device__ float operator()(float a, float b) const { return a + b; } };
struct Max { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
""",
    "cpp": """
#include <cmath>
#define DEVICE static inline
#define LANE 0
#define LANES 1
template <typename F>
static inline float reduce(float value, F) { return value; }
struct Add {};
struct Max {};
""",
}

LAUNCH = {
    "cu": """
__global__ void work({parameters}) {{
    const long long item = {index};
    if (item < {items}) one(item{names});
}}
extern "C" int launch({arguments}) {{
    work<<<{blocks}, 256, 0, stream>>>({given});
    return cudaGetLastError();
}}
""",
    "cpp": """
extern "C" int launch({arguments}) {{
    #pragma omp parallel for schedule(static, 16)
    for (long long item = 0; item < {items}; item++) one(item{names});
    return 0;
}}
""",
}


@dataclass(frozen=True)
class Case:
    """A problem and its kernel.

    ``sizes`` are the problem's sizes by device. ``body`` computes one of ``items`` items, with a whole thread block if
    ``rows`` is true.
    """

    name: str
    sizes: dict[str, str]
    model: str
    inputs: str
    items: str
    body: str
    rows: bool = False
    init: str = ""

    def problem(self, device: str) -> str:
        model = "\n".join(f"    {line}" for line in self.model.strip("\n").split("\n"))
        return PROBLEM.format(sizes=self.sizes[device], model=model, inputs=self.inputs, init=self.init)


def forward(expression: str, arguments: str = "x") -> str:
    return f"def forward(self, {arguments}):\n    return {expression}"


CONV = """
def __init__(self):
    super().__init__()
    self.conv = nn.Conv2d(3, FILTERS, 11, stride=4, padding=2)
def forward(self, x):
    return {}
"""
# This code computes the sum over one window of an 11 x 11 convolution with stride 4 and padding 2.
WINDOW = """
    float sum = conv_bias[f];
    for (int c = 0; c < 3; c++) {
        for (int r = 0; r < 11; r++) {
            const long long iy = y * 4 + r - 2;
            if (iy < 0 || iy >= x_dim2) continue;
            for (int s = 0; s < 11; s++) {
                const long long ix = z * 4 + s - 2;
                if (ix < 0 || ix >= x_dim3) continue;
                sum += x[((n * 3 + c) * x_dim2 + iy) * x_dim3 + ix] * conv_weight[((f * 3 + c) * 11 + r) * 11 + s];
            }
        }
    }
"""
PLACE = """
    const long long z{0} = item % out_dim3, y{0} = item / out_dim3 % out_dim2;
    const long long f = item / (out_dim3 * out_dim2) % out_dim1, n = item / (out_dim3 * out_dim2 * out_dim1);
"""
PRODUCT = """
    const long long row = item / out_dim1, column = item % out_dim1;
    float sum = 0;
    for (long long k = 0; k < a_dim1; k++) sum += (float)a[row * a_dim1 + k] * (float)b[k * out_dim1 + column];
    out[item] = sum;
"""
NORM_MODEL = """
def __init__(self):
    super().__init__()
    self.ln = nn.LayerNorm(COLUMNS)
def forward(self, x):
    return self.ln(x)
"""
RMS_MODEL = """
def __init__(self):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(COLUMNS))
def forward(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
"""


def table(cuda: str, cpu: str) -> dict[str, str]:
    return {"cuda": f"ROWS, COLUMNS = {cuda}", "cpu": f"ROWS, COLUMNS = {cpu}"}


CASES = (
    Case(
        "softmax",
        table("4096, 65536", "1000, 1500"),
        forward("torch.softmax(x, dim=1)"),
        "torch.randn(ROWS, COLUMNS)",
        "x_dim0",
        """
    const float* in = x + item * x_dim1;
    float* to = out + item * x_dim1;
    float most = -INFINITY, sum = 0;
    for (long long i = LANE; i < x_dim1; i += LANES) most = fmaxf(most, in[i]);
    most = reduce(most, Max());
    for (long long i = LANE; i < x_dim1; i += LANES) sum += to[i] = expf(in[i] - most);
    sum = reduce(sum, Add());
    for (long long i = LANE; i < x_dim1; i += LANES) to[i] /= sum;
""",
        rows=True,
    ),
    Case(
        "layernorm",
        table("16384, 8192", "1000, 1500"),
        NORM_MODEL,
        "torch.randn(ROWS, COLUMNS)",
        "x_dim0",
        """
    const float* in = x + item * x_dim1;
    float sum = 0, squares = 0;
    for (long long i = LANE; i < x_dim1; i += LANES) sum += in[i];
    const float mean = reduce(sum, Add()) / x_dim1;
    for (long long i = LANE; i < x_dim1; i += LANES) squares += (in[i] - mean) * (in[i] - mean);
    const float scale = 1 / sqrtf(reduce(squares, Add()) / x_dim1 + 1e-5f);
    for (long long i = LANE; i < x_dim1; i += LANES)
        out[item * x_dim1 + i] = (in[i] - mean) * scale * ln_weight[i] + ln_bias[i];
""",
        rows=True,
    ),
    Case(
        "rmsnorm",
        table("16384, 4096", "1000, 1500"),
        RMS_MODEL,
        "torch.randn(ROWS, COLUMNS)",
        "x_dim0",
        """
    const float* in = x + item * x_dim1;
    float squares = 0;
    for (long long i = LANE; i < x_dim1; i += LANES) squares += in[i] * in[i];
    const float scale = 1 / sqrtf(reduce(squares, Add()) / x_dim1 + 1e-6f);
    for (long long i = LANE; i < x_dim1; i += LANES) out[item * x_dim1 + i] = in[i] * scale * weight[i];
""",
        rows=True,
    ),
    Case(
        "row_sum",
        table("16384, 16384", "1000, 3000"),
        forward("x.sum(1)"),
        "torch.rand(ROWS, COLUMNS)",
        "x_dim0",
        """
    float sum = 0;
    for (long long i = LANE; i < x_dim1; i += LANES) sum += x[item * x_dim1 + i];
    sum = reduce(sum, Add());
    if (LANE == 0) out[item] = sum;
""",
        rows=True,
    ),
    Case(
        "argmax",
        table("16384, 8192", "1000, 3000"),
        forward("x.argmax(1)"),
        "torch.randn(ROWS, COLUMNS)",
        "x_dim0",
        """
    float most = -INFINITY, place = x_dim1;
    for (long long i = LANE; i < x_dim1; i += LANES) most = fmaxf(most, x[item * x_dim1 + i]);
    most = reduce(most, Max());
    for (long long i = LANE; i < x_dim1; i += LANES)
        if (x[item * x_dim1 + i] == most && i < place) place = i;
    place = -reduce(-place, Max());
    if (LANE == 0) out[item] = (int64_t)place;
""",
        rows=True,
    ),
    Case(
        "gelu",
        table("8192, 16384", "1000, 1500"),
        forward("F.gelu(x, approximate='tanh')"),
        "torch.randn(ROWS, COLUMNS)",
        "x_numel",
        """
    const float v = x[item];
    out[item] = 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
""",
    ),
    Case(
        "swiglu_fp16",
        table("8192, 16384", "1000, 1500"),
        forward("F.silu(gate) * value", "gate, value"),
        "*(torch.randn(ROWS, COLUMNS, dtype=torch.float16) for _ in range(2))",
        "gate_numel",
        """
    const float g = (float)gate[item];
    out[item] = g / (1.0f + expf(-g)) * (float)value[item];
""",
    ),
    Case(
        "matmul",
        {"cuda": "M, K, N = 2048, 2048, 2048", "cpu": "M, K, N = 200, 250, 210"},
        forward("a @ b", "a, b"),
        "torch.randn(M, K), torch.randn(K, N)",
        "out_numel",
        PRODUCT,
    ),
    Case(
        "conv2d",
        {"cuda": "BATCH, SIDE, FILTERS = 100, 224, 96", "cpu": "BATCH, SIDE, FILTERS = 4, 60, 16"},
        CONV.format("self.conv(x)"),
        "torch.randn(BATCH, 3, SIDE, SIDE)",
        "out_numel",
        PLACE.format("") + WINDOW + "    out[item] = sum;\n",
    ),
    Case(
        "conv2d_relu_maxpool",
        {"cuda": "BATCH, SIDE, FILTERS = 100, 224, 96", "cpu": "BATCH, SIDE, FILTERS = 4, 60, 16"},
        CONV.format("F.max_pool2d(F.relu(self.conv(x)), 3, 2)"),
        "torch.randn(BATCH, 3, SIDE, SIDE)",
        "out_numel",
        PLACE.format("0")
        + "    float most = 0;\n    for (int p = 0; p < 9; p++) {\n"
        + "    const long long y = y0 * 2 + p / 3, z = z0 * 2 + p % 3;\n"
        + WINDOW
        + "    most = fmaxf(most, sum);\n    }\n    out[item] = most;\n",
    ),
)


def kernel(case: Case, header: str, language: Language) -> str:
    """Return the C source that both variants run."""
    declared = next(line for line in header.splitlines() if " launch(" in line)
    arguments = declared.removeprefix('extern "C" int launch(').removesuffix(");")
    tensors = [part for part in arguments.split(", ") if part.split()[-1] not in ("workspace", "stream")]
    names = [part.split()[-1] for part in tensors]
    body = f"DEVICE void one(long long item, {', '.join(tensors)}) {{{case.body}}}\n"
    return (
        PRELUDE[language]
        + body
        + LAUNCH[language].format(
            parameters=", ".join(tensors),
            arguments=arguments,
            given=", ".join(names),
            names="".join(f", {name}" for name in names),
            items=case.items,
            index="blockIdx.x" if case.rows else "blockIdx.x * 256LL + threadIdx.x",
            blocks=case.items if case.rows else f"({case.items} + 255) / 256",
        )
    )


def module(spec: ProblemSpec, source: str, header: str, language: Language, how: How) -> str:
    """Return a ``ModelNew`` that calls the same source. The class inherits the constructor, so that the state dicts
    match."""
    (out,) = spec.outputs
    text = header.replace("#pragma once\n", "") + source
    given = [f"inputs[{index}]" for index in range(len(spec.inputs))]
    given += [f"self.{weight.source_name}" for weight in spec.weights]
    allocate = f"out = torch.empty({out.shape}, dtype=torch.{out.dtype}, device=inputs[0].device)"
    if how == "load_c":
        build = f"from kernel_tui import load_c\nkernels = load_c({text!r}, {language!r})\n"
        call = f"{allocate}\n        kernels.launch({', '.join(given)}, out, None)\n        return out"
    else:
        build, call = inline(spec, text, language), f"return module.run({', '.join(given)})"
    return f"{spec.source}\n{build}\nclass ModelNew(Model):\n    def forward(self, *inputs):\n        {call}\n"


def inline(spec: ProblemSpec, text: str, language: Language) -> str:
    """Return the ``load_inline`` call for a function ``run`` that allocates the output and launches the kernel."""
    (out,) = spec.outputs
    tensors = [*spec.inputs, *spec.weights]
    parameters = ", ".join(f"torch::Tensor t{index}" for index in range(len(tensors)))
    kinds = {"float32": "torch::kFloat32", "float16": "torch::kFloat16", "int64": "torch::kInt64"}
    shape = ", ".join(map(str, out.shape))
    pointers = [f"static_cast<decltype({_pointer(spec, index)})>(t{index}.data_ptr())" for index in range(len(tensors))]
    pointers.append(f"static_cast<decltype({_pointer(spec, len(tensors))})>(out.data_ptr())")
    stream = ", c10::cuda::getCurrentCUDAStream().stream()" if language == "cu" else ""
    wrapper = (
        f"template <int N, typename... A> auto pointer_of(int (*)(A...)) {{ "
        f"return std::get<N>(std::tuple<A...>{{}}); }}\n"
        f"torch::Tensor run({parameters}) {{\n"
        f"    auto out = torch::empty({{{shape}}}, t0.options().dtype({kinds[out.dtype]}));\n"
        f"    TORCH_CHECK(launch({', '.join(pointers)}, nullptr{stream}) == 0);\n    return out;\n}}\n"
    )
    head = "from torch.utils.cpp_extension import load_inline\n"
    if language == "cpp":
        flags = "extra_cflags=['-O3', '-march=native', '-fopenmp'], extra_ldflags=['-fopenmp']"
        return f"{head}module = load_inline('both', {text + wrapper!r}, functions=['run'], {flags})\n"
    cuda = "#include <tuple>\n#include <c10/cuda/CUDAStream.h>\n" + text + wrapper
    declaration = f"torch::Tensor run({parameters});"
    # By default, torch disables the implicit conversions of half.
    flags = "extra_cuda_cflags=['-O3', '-U__CUDA_NO_HALF_OPERATORS__', '-U__CUDA_NO_HALF_CONVERSIONS__']"
    return f"{head}module = load_inline('both', {declaration!r}, {cuda!r}, functions=['run'], {flags})\n"


def _pointer(spec: ProblemSpec, index: int) -> str:
    return f"pointer_of<{index}>(&launch)"


@dataclass(frozen=True)
class Pair:
    """A kernel as C source and as ``ModelNew``."""

    case: Case
    how: How
    spec: ProblemSpec
    language: Language
    source: str
    module: str


async def pair(evaluator: LocalEvaluator, case: Case, device: str, how: How) -> Pair:
    """Open the problem and return both sources of its kernel."""
    language: Language = "cu" if device == "cuda" else "cpp"
    (spec,) = await inspect_sources(case.name, f"{case.name}.py", [case.problem(device)])
    if not isinstance(spec, ProblemSpec):
        sys.exit(str(spec))
    header = derive_header(spec, language)
    source = kernel(case, header, language)
    await evaluator.open(spec, header)
    return Pair(case, how, spec, language, source, module(spec, source, header, language, how))


async def judge(evaluator: LocalEvaluator, both: Pair) -> tuple[Verdict, Verdict]:
    return (
        await evaluator.evaluate(both.spec, both.language, both.source, lambda stage: None),
        await evaluator.evaluate(both.spec, "py", both.module, lambda stage: None),
    )


async def race(evaluator: LocalEvaluator, both: Pair) -> float:
    """Return the ratio of the ``.py`` kernel's time to the C kernel's time, from a runoff."""
    runoff = await evaluator.runoff(both.spec, {"c": (both.language, both.source), "py": ("py", both.module)})
    ratios = {row.variant: row.ratio for row in runoff}
    return ratios["py"] / ratios["c"]


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--how", choices=("load_inline", "load_c", "both"), default="both")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES])
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = LocalEvaluator(EvaluationConfig(device=options.device), Path(scratch))
        try:
            (device, *_) = await evaluator.start()
            print(f"device {device.name}; sandbox: {evaluator.sandbox}")
            print(f"{'kernel':20}{'built by':>12}{'s':>7}{'C kernel':>10}{'.py':>10}", end="")
            print(f"{'C ms':>10}{'.py ms':>10}{'ratio':>8}{'in a runoff':>11}  weights", flush=True)
            pairs = []
            for index, case in enumerate(chosen):
                how: How = options.how if options.how != "both" else ("load_inline", "load_c")[index % 2]
                pairs.append(await pair(evaluator, case, options.device, how))
            verdicts = await asyncio.gather(*(judge(evaluator, both) for both in pairs))  # compile in parallel
            for both, (plain, wrapped) in zip(pairs, verdicts, strict=True):
                runoff = await race(evaluator, both) if plain.correct and wrapped.correct else None
                failed += _print_row(both.case, both.how, plain, wrapped, runoff)
        finally:
            await evaluator.close()
    print(
        f"{len(chosen) - failed} of {len(chosen)} kernels: same verdict, times above {ABOVE_MS} ms within {ALLOWED:.0%}"
    )
    return 1 if failed else 0


def _print_row(case: Case, how: How, plain: Verdict, wrapped: Verdict, runoff: float | None) -> bool:
    """Print one line. Return whether ``.cu`` and ``.py`` kernels disagree."""
    built = wrapped.build.seconds if wrapped.build is not None else 0.0
    line = f"{case.name:20}{how:>12}{built:7.1f}{plain.status:>10}{wrapped.status:>10}"
    if plain.kernel is None or wrapped.kernel is None or runoff is None:
        print(f"{line}  {plain.reason or wrapped.reason}", flush=True)
        return True
    ours, theirs = plain.kernel.median_ms, wrapped.kernel.median_ms
    detail = wrapped.checks[0].detail if wrapped.checks else ""
    print(f"{line}{ours:10.4f}{theirs:10.4f}{theirs / ours:8.3f}{runoff:11.3f}  {detail}", flush=True)
    return ours > ABOVE_MS and abs(runoff - 1) > ALLOWED


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
