"""Every dtype, several inputs and outputs, and in-out arguments, judged in C languages on the CPU and on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.evaluation.conftest import Bench

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
SIZE = 20_011

CASES: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {}
"""name: (Model's body, loop bodies of correct kernels by language, wrong ones). ``i`` counts to the first output's
size."""

ROUND = "static inline uint16_t to_bf16(float v) { uint32_t w; __builtin_memcpy(&w, &v, 4); "
ROUND += "return (w + 0x7fff + (w >> 16 & 1)) >> 16; }\n"
ROUND += "static inline float from_bf16(uint16_t b) { uint32_t w = (uint32_t)b << 16; float v; "
ROUND += "__builtin_memcpy(&v, &w, 4); return v; }\n"


def problem(body: str, inputs: str, init: str = "[]") -> str:
    return f"""{HEAD}
class Model(nn.Module):
{body}

def get_inputs():
    return {inputs}

def get_init_inputs():
    return {init}
"""


def add(name: str, body: str, inputs: str, right: str | dict[str, str], wrong: str | dict[str, str]) -> None:
    def by_form(text: str | dict[str, str]) -> dict[str, str]:
        return text if isinstance(text, dict) else {"cpp": text, "cu": text}

    CASES[name] = (body, inputs, by_form(right), by_form(wrong))


for dtype in ("float16", "float64"):
    add(
        dtype,
        "    def forward(self, x, y):\n        return x * y + 1",
        f"[torch.randn({SIZE}, dtype=torch.{dtype}), torch.randn({SIZE}, dtype=torch.{dtype})]",
        "out[i] = (double)((float)x[i] * (float)y[i] + 1.0f);",
        "out[i] = (double)((float)x[i] * (float)y[i] * 1.1f + 1.0f);",
    )
add(
    "bfloat16",
    "    def forward(self, x):\n        return F.silu(x)",
    f"[torch.randn({SIZE}, dtype=torch.bfloat16)]",
    {
        "cpp": "float v = from_bf16(x[i]); out[i] = to_bf16(v / (1 + std::exp(-v)));",
        "cu": "float v = x[i]; out[i] = v / (1 + expf(-v));",
    },
    {"cpp": "out[i] = x[i];", "cu": "out[i] = x[i];"},
)
add(
    "bfloat16 that eager rounds at each step",
    "    def forward(self, x):\n        return (x + 8) - 8",
    f"[torch.randn({SIZE}, dtype=torch.bfloat16)]",
    {"cpp": "out[i] = to_bf16((from_bf16(x[i]) + 8) - 8);", "cu": "out[i] = ((float)x[i] + 8) - 8;"},
    {"cpp": "out[i] = to_bf16(1.1f * from_bf16(x[i]));", "cu": "out[i] = 1.1f * (float)x[i];"},
)
add(
    "int32 and int64",
    "    def forward(self, a, b):\n        return a * 3 + b, (a > b).sum(dtype=torch.int64).reshape(1)",
    f"[torch.randint(-99, 99, ({SIZE},), dtype=torch.int32), torch.randint(-99, 99, ({SIZE},))]",
    "out0[i] = a[i] * 3LL + b[i]; "
    "if (!i) { int64_t n = 0; for (long long j = 0; j < a_numel; j++) n += a[j] > b[j]; out1[0] = n; }",
    "out0[i] = a[i] * 3LL + b[i] + (i == 7000); "
    "if (!i) { int64_t n = 0; for (long long j = 0; j < a_numel; j++) n += a[j] > b[j]; out1[0] = n; }",
)
add(
    "bool",
    "    def forward(self, x, mask):\n        return (x > 0) & mask",
    f"[torch.randn({SIZE}), torch.rand({SIZE}) > 0.3]",
    "out[i] = x[i] > 0 && mask[i];",
    "out[i] = x[i] > 0;",
)
add(
    "class indices",
    "    def __init__(self):\n        super().__init__()\n        self.table = nn.Embedding(60, 8)\n"
    "    def forward(self, word):\n        return self.table(word)",
    "[torch.randint(0, 60, (2500,))]",
    "out[i] = table_weight[word[i / 8] * 8 + i % 8];",
    # correct for the first forty classes only
    "out[i] = table_weight[(word[i / 8] % 40) * 8 + i % 8];",
)
add(
    "argmax",
    "    def forward(self, x):\n        return x.argmax(1)",
    "[torch.randint(0, 50, (3000, 77)).float()]",
    "long long best = 0; for (long long j = 1; j < x_dim1; j++) "
    "if (x[i * x_dim1 + j] > x[i * x_dim1 + best]) best = j; out[i] = best;",
    # the last of several largest values, where PyTorch promises the first
    "long long best = 0; for (long long j = 1; j < x_dim1; j++) "
    "if (x[i * x_dim1 + j] >= x[i * x_dim1 + best]) best = j; out[i] = best;",
)
add(
    "buffers that the model writes",
    "    def __init__(self):\n        super().__init__()\n"
    "        self.register_buffer('total', torch.zeros(5000))\n"
    "        self.register_buffer('calls', torch.zeros((), dtype=torch.int64))\n"
    "    def forward(self, x):\n        self.total.mul_(0.9).add_(x)\n        self.calls += 1\n"
    "        return x - self.total",
    "[torch.randn(5000)]",
    "total[i] = total[i] * 0.9f + x[i]; out[i] = x[i] - total[i]; if (!i) *calls += 1;",
    "float t = total[i] * 0.9f + x[i]; out[i] = x[i] - t; if (!i) *calls += 1;",
)
add(
    "an input that the model writes",
    "    def forward(self, x, y):\n        return x.add_(y)",
    f"[torch.randn({SIZE}), torch.randn({SIZE})]",
    "out[i] = x[i] += y[i];",
    "out[i] = x[i] + y[i];",
)
add(
    "scalars",
    "    def forward(self, x, scale, shift):\n        return x * scale + shift",
    f"[torch.randn({SIZE}), 2.5, 3]",
    "out[i] = x[i] * (float)scale + shift;",
    "out[i] = x[i] * (float)scale;",
)
add(
    "probabilities, which must stay within bounds",
    "    def forward(self, p, t):\n        return F.binary_cross_entropy(p, t, reduction='none')",
    f"[torch.rand({SIZE}) * 0.98 + 0.01, torch.rand({SIZE})]",
    {
        "cpp": "out[i] = -t[i] * std::log(p[i]) - (1 - t[i]) * std::log(1 - p[i]);",
        "cu": "out[i] = -t[i] * logf(p[i]) - (1 - t[i]) * logf(1 - p[i]);",
    },
    "out[i] = p[i];",
)


def kernel(bench: Bench, loop: str) -> str:
    """A kernel that runs ``loop`` for every element of the first output."""
    declaration = next(line for line in bench.header.splitlines() if " launch(" in line)
    arguments = declaration.removeprefix('extern "C" int launch(').removesuffix(");")
    first = bench.problem.outputs[0].name
    if bench.language == "cpp":
        return (
            f'#include <cmath>\n{ROUND}extern "C" int launch({arguments}) {{\n'
            f"#pragma omp parallel for\n    for (long long i = 0; i < {first}_numel; i++) {{ {loop} }}\n"
            "    return 0;\n}\n"
        )
    given = [argument for argument in arguments.split(", ") if argument.split()[-1] not in ("workspace", "stream")]
    names = ", ".join(argument.split()[-1] for argument in given)
    return (
        f"__global__ void work({', '.join(given)}) {{\n    long long i = blockIdx.x * 256LL + threadIdx.x;\n"
        f"    if (i < {first}_numel) {{ {loop} }}\n}}\n"
        f'extern "C" int launch({arguments}) {{\n'
        f"    work<<<({first}_numel + 255) / 256, 256, 0, stream>>>({names});\n    return cudaGetLastError();\n}}\n"
    )


@pytest.mark.parametrize("name", list(CASES))
def test_the_right_kernel_passes_and_the_wrong_one_does_not(bench: Bench, name: str, tmp_path: Path) -> None:
    body, inputs, right, wrong = CASES[name]
    bench.open(problem(body, inputs), name.replace(" ", "_").replace(",", ""), tmp_path)

    good = bench.judge(kernel(bench, right[bench.language]))
    bad = bench.judge(kernel(bench, wrong[bench.language]))

    assert good.correct, good.reason
    assert bad.status == "wrong", bad.reason
