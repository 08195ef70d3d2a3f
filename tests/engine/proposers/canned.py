"""Replies in the style of models, for a softmax over rows: ideas as JSON, kernels that compile, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Sequence

PROBLEM = """\
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.randn(200, 1000)]

def get_init_inputs():
    return []
"""

SLOW_PROBLEM = PROBLEM.replace("import torch", "import time\n\nimport torch", 1).replace(
    "        return", "        time.sleep(0.04)\n        return", 1
)
"""A softmax whose time a sleep sets. A busy machine hardly changes it, unlike the time of a computation."""

_SOFTMAX = """\
#include <math.h>
// {tag}
extern "C" int launch(const float* x, float* out, void* workspace) {{
    for (long long r = 0; r < x_dim0; ++r) {{
        const float* a = x + r * x_dim1;
        float* b = out + r * x_dim1;
        float top = a[0], sum = {start};
        for (long long c = 1; c < x_dim1; ++c) top = fmaxf(top, a[c]);
        for (long long c = 0; c < x_dim1; ++c) sum += b[c] = expf(a[c] - top);
        const float scale = 1.0f / sum;
        for (long long c = 0; c < x_dim1; ++c) b[c] {last};
    }}
    return 0;
}}
"""


def good(tag: str) -> str:
    """Return a correct softmax. ``tag`` makes its source unique, but not its machine code."""
    return _SOFTMAX.format(tag=tag, start="0.0f", last="*= scale")


def asleep(source: str) -> str:
    """Return the kernel with a sleep of half of the reference's, so that kernels have equal speedups on any machine."""
    return "#include <unistd.h>\n" + source.replace("{", "{\n    usleep(20000);", 1)


def divides(tag: str) -> str:
    """Return a correct softmax with different machine code."""
    return _SOFTMAX.format(tag=tag, start="0.0f", last="/= sum")


def wrong(tag: str) -> str:
    """Return a softmax that forgets to divide."""
    return _SOFTMAX.format(tag=tag, start="0.0f", last="*= 1.0f + 0.0f * scale")


def broken(tag: str) -> str:
    """Return a kernel that does not compile."""
    return good(tag).replace("return 0;", "return zero;")


def block(source: str, language: str = "cpp") -> str:
    """Return a reply with one kernel and the surrounding prose that models add."""
    return f"Here is the kernel.\n\n```{language}\n{source}```\n"


def ideas(*texts: str, category: str = "memory") -> str:
    """Return a reply with ideas."""
    return json.dumps({"ideas": [{"category": category, "bottleneck": "bandwidth", "text": text} for text in texts]})


IDEAS: Sequence[str] = (
    "Walk each row three times in plain scalar loops: largest value, exponentials, division.",
    "Keep several independent partial sums per row so the adders never wait for one another.",
    "Replace expf by a polynomial of degree five in vector registers, with the exponent built from integer shifts.",
    "Split rows between OpenMP threads with static chunks, pinned, first touch respected.",
    "Process two rows side by side, hiding the latency of division behind the other row's loads.",
    "Prefetch the following row while the present one is normalised, streaming stores past the cache.",
)
