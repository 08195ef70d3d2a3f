"""Problems and knob settings that ``templates.py`` uses to test the playbook's CUDA templates."""

from __future__ import annotations

import itertools
from typing import Any

R = "torch.randn({})".format
H = "torch.randn({}, dtype=torch.float16)".format
B = "torch.randn({}, dtype=torch.bfloat16)".format
Written = tuple[str, str, list[str]]
"""Each problem's weights, expression in x (and y, z), and inputs."""
SMALL: dict[str, Written] = {
    "softmax_7x1": ("", "torch.softmax(x, 1)", [R("7, 1")]),
    "softmax_5x33": ("", "torch.softmax(x, 1)", [R("5, 33")]),
    "softmax_2x4098": ("", "torch.softmax(x, 1)", [R("2, 4098")]),
    "softmax_300x8192": ("", "torch.softmax(x, 1)", [R("300, 8192")]),
    "softmax_1x1000003": ("", "torch.softmax(x, 1)", ["100 * " + R("1, 1000003")]),
    "softmax_masked": (
        "", "torch.softmax(x, 1)", [R("64, 5004") + ".masked_fill(torch.rand(64, 5004) < 0.9, -torch.inf)"],
    ),
    "log_softmax_37x20000": ("", "torch.log_softmax(x, 1)", [R("37, 20000")]),
    "layernorm_5x37": ("self.ln = nn.LayerNorm(37)", "self.ln(x)", ["1000 + " + R("5, 37")]),
    "layernorm_9x77x20x14": ("self.ln = nn.LayerNorm((77, 20, 14))", "self.ln(x)", ["30 + " + R("9, 77, 20, 14")]),
    "layernorm_3x400004": ("self.ln = nn.LayerNorm(400004)", "F.gelu(self.ln(x + y))", 2 * [R("3, 400004")]),
    "rmsnorm_70x4096": (
        "self.w = nn.Parameter(torch.randn(4096))",
        "self.w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))",
        [R("70, 4096")],
    ),
    "logsumexp_50x10000": ("", "torch.logsumexp(x, 1)", [R("50, 10000")]),
    "normalize_20x5555": ("", "F.normalize(x, dim=1)", [R("20, 5555")]),
    "softmax_scaled": ("", "torch.softmax(x * y, 1)", [R("40, 3000"), R("40, 1")]),
    "softmax_biased": ("", "torch.softmax(x + y, -1)", [R("3, 5, 7, 64"), R("7, 64")]),
    "layernorm_gated": ("self.ln = nn.LayerNorm(1000)", "self.ln(x) * y", [R("4, 30, 1000"), R("30, 1000")]),
    "centred_and_sum": ("", "(x - x.amax(1, keepdim=True), x.sum(1), x.amin(1))", [R("31, 2052")]),
    "gelu_1003": ("", "F.gelu(x, approximate='tanh')", [R("1003")]),
    "bias_4x6x5x5": ("self.b = nn.Parameter(torch.randn(6, 1, 1))", "torch.tanh(x + self.b)", [R("4, 6, 5, 5")]),
    "bias_4x6x10x10": ("self.b = nn.Parameter(torch.randn(6, 1, 1))", "torch.sigmoid(x + self.b)", [R("4, 6, 10, 10")]),
    "swiglu_100x333": ("", "F.silu(x) * y", [R("100, 333"), R("333")]),
    # The products, convolutions and attention below cover every transformation, every value of every knob, and random
    # recipes.
    "matmul_uneven": ("", "x @ y", [R("201, 333"), R("333, 407")]),
    "matmul_half": ("", "x @ y", [H("200, 336"), H("336, 408")]),
    "matmul_bf16_turned": ("", "F.relu(x.t() @ y.t())", [B("333, 201"), B("407, 333")]),
    "matmul_batched": ("", "x @ y.transpose(-1, -2)", [R("3, 1, 70, 96"), R("5, 130, 96")]),
    "linear_gelu": ("self.l = nn.Linear(300, 500)", "F.gelu(self.l(x)) * 2", [R("7, 50, 300")]),
    "conv_uneven": ("self.c = nn.Conv2d(6, 20, (3, 5), 2, 2, groups=2)", "F.relu(self.c(x))", [R("3, 6, 37, 41")]),
    "conv_pooled": (
        "self.c = nn.Conv2d(3, 40, 7, 2, 3)", "F.max_pool2d(F.relu(self.c(x)), 3, 2)", [R("4, 3, 61, 75")],
    ),
    "conv1d": ("self.c = nn.Conv1d(8, 24, 5, padding=2)", "torch.tanh(self.c(x))", [R("4, 8, 301")]),
    "attention_fp32": ("", "F.scaled_dot_product_attention(x, y, z)", 3 * [R("2, 3, 201, 48")]),
    "attention_fp16_causal": (
        "", "F.scaled_dot_product_attention(x, y, z, is_causal=True)", 3 * [H("2, 3, 200, 64")],
    ),
    "attention_bf16_written": (
        "", "torch.softmax(x @ y.transpose(-1, -2) * 0.2, -1) @ z", [B("2, 130, 72"), B("2, 90, 72"), B("2, 90, 40")],
    ),
}  # fmt: skip
LARGE_POINTWISE: dict[str, Written] = {
    "gelu_large": ("", "0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))", [R("8192, 16384")]),
}
HEADLINE = (
    "softmax", "layernorm", "layernorm_shifted", "matmul_fp32", "matmul_fp16", "conv2d", "conv2d_relu_maxpool",
    "flash_attention_fp16",
)  # fmt: skip
TF32_LIMIT = 2e-3
"""Maximum relative error if a kernel rounds its operands to TF32."""

FAST = {"width": 4, "math": "fast", "read": "stream", "store": "stream"}
ROWS = {**FAST, "merge": "shuffle", "fused": True}
Labeled = tuple[str, dict[str, Any]]


def variations(base: dict[str, Any], **knobs: tuple[Any, ...]) -> list[Labeled]:
    """Return ``base`` combined with every combination of ``knobs``, each with a label."""
    names = list(knobs)
    out = []
    for values in itertools.product(*knobs.values()):
        changes = {**base, **dict(zip(names, values, strict=True))}
        label = " ".join(
            [str(base.get("structure", "loop")), *(f"{n}={v}" for n, v in zip(names, values, strict=True))]
        )
        out.append((label, changes))
    return out


def grid(family: str, name: str, timed: bool) -> list[Labeled]:
    """Return settings for problem ``name`` that the pattern's transformations do not produce."""
    if family == "pointwise":
        return [("plain", {}), *variations(FAST, unroll=(1, 2, 4), threads=(256, 512), persistent=(False, True))]
    if family in ("matmul", "conv"):
        return [("plain", {}), *(_products() if timed else [])]
    if family == "attention":
        return [("plain", {}), *(_attention() if timed else [])]
    return [("plain", {}), ("shuffle", {"merge": "shuffle"}), ("fused tree", {"fused": True, "width": 4}),
            *(_rows(name) if timed else _small_rows())]  # fmt: skip


def _products() -> list[Labeled]:
    tiles = {"structure": "tiles", "vector": True, "fused": True, "tm": 8, "tn": 8}
    tensor = {"structure": "tensor", "vector": True, "fused": True}
    found = variations(tiles, bm=(64, 128), bn=(64, 128), bk=(8, 16), copy=("sync", "registers"))
    found += variations({**tiles, "copy": "async"}, bm=(64, 128), bn=(128,), bk=(16,), stages=(2, 3, 4), group=(1, 8))
    found += variations(tensor, bm=(64, 128), bn=(64, 128), bk=(32,), wm=(2,), wn=(2, 4), copy=("registers",))
    found += variations(
        {**tensor, "copy": "async", "group": 8}, bm=(128, 256), bn=(128,), bk=(32, 64), wm=(2, 4), wn=(2, 4),
        stages=(3, 4),
    )  # fmt: skip
    return found


def _attention() -> list[Labeled]:
    fast = {"vector": True, "math": "fast"}
    found = variations({**fast, "structure": "tiles"}, queries=(64, 128), keys=(32, 64), threads=(128, 256))
    found += variations({**fast, "structure": "tensor"}, keys=(32, 64, 128), threads=(64, 128, 256))
    return found


def _small_rows() -> list[Labeled]:
    precise = {**ROWS, "math": "precise"}
    found = variations(ROWS, unroll=(4,), threads=(512,))
    found += variations(precise | {"structure": "registers"}, cluster=(0, 1, 2, 8), threads=(128,))
    found += variations(
        ROWS | {"structure": "split", "unroll": 2}, rows_per_block=(1, 3), group_rows=(0, 2), span_kb=(16,)
    )
    found += variations(
        ROWS | {"structure": "ring"}, cluster=(1, 2, 4, 0), keep=(0, 1), threads=(256,), slot_kb=(2, 16)
    )
    return found + variations(ROWS | {"structure": "ring", "blocks": 2}, cluster=(4, 0), threads=(128,), slot_kb=(4,))


def _rows(name: str) -> list[Labeled]:
    if name == "softmax":
        ring = ROWS | {"structure": "ring", "cluster": 2}
        found = variations({**ROWS, "threads": 1024}, unroll=(2, 8), read=("plain",))
        found += variations(ROWS | {"structure": "registers"}, cluster=(8,), threads=(512,), blocks=(2, 3, 4))
        found += variations(ring, threads=(512, 640, 768, 992), slot_kb=(16, 32), store=("stream", "plain"))
        return found + variations(ring | {"cluster": 8, "blocks": 4}, threads=(128,), slot_kb=(4,))
    split = {**ROWS, "structure": "split", "read": "plain"}
    found = variations(split | {"unroll": 4}, rows_per_block=(1, 16), group_rows=(0, 4))
    found += variations(split | {"rows_per_block": 16}, unroll=(1, 2), threads=(256, 512), span_kb=(256, 512))
    ring = ROWS | {"structure": "ring", "cluster": 0}
    found += variations(ring, threads=(256, 512, 768, 992), slot_kb=(8, 16), keep=(0, 2, 4))
    found += variations(ring | {"threads": 512}, slot_kb=(32,), keep=(0, 1), store=("stream", "plain"))
    return found + variations(ring | {"blocks": 2}, threads=(256,), slot_kb=(8,), keep=(0, 2))
