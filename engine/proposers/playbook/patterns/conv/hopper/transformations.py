"""The first kernel, transformations and knobs of convolutions that stream down the rows of images."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choice, Choices, Recipe, Start, Transformation
from engine.proposers.playbook.patterns.conv.cuda_octets_transformations import has_fast_form
from engine.proposers.playbook.patterns.conv.hopper.plan import StreamPlan, first_choices, resolve
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_transformations import fast_epilogue

_OPENED = ("loaders", "batch", "prefetch", "most_slots")


def start(conv: ConvProgram, plain: Recipe, device: DeviceFact) -> Start:
    """Return the first kernel on Hopper, which streams down rows."""
    text = [
        "Let each block stream down the rows of images. Producer warps round image rows to 16 bits and write them to "
        "a ring buffer in shared memory. The layout lets wgmma read any tap of a row in place. The filters stay in "
        "shared memory. A warpgroup multiplies a row of 64 pixels by all filters, and writes its results while the "
        "tensor cores compute the next row."
    ]
    if conv.dtype == "float32":
        text.append("Split each fp32 number into two bf16 numbers and add three products: errors stay below 1e-5.")
    if conv.pool is not None:
        text.append("Keep the maximum of a window's rows in registers, so that the kernel writes only pooled results.")
    return Start("wgmma_rows", " ".join(text), plain.with_(first_choices(device.cores), _OPENED))


def transformations(conv: ConvProgram, plan: StreamPlan, now: Choices) -> list[Transformation]:
    """Return the transformations of a kernel that streams down rows."""
    found = []
    if plan.parts == 2:
        found.append(
            Transformation(
                "fp16_tensor_cores",
                "precision",
                "Round operands to fp16 (10 bits of mantissa) and multiply once, with fp32 accumulators. The kernel "
                "then needs a third of the products and half the shared memory. The relative error rises to about "
                "1e-3, and numbers above 65504 become infinite.",
                {"arithmetic": "fp16"},
                _OPENED,
                gain=2.0,
                helps="compute",
            )
        )
    two = resolve(conv, {**now, "teams": 2})
    if plan.teams == 1 and two is not None and two.teams == 2:
        found.append(
            Transformation(
                "two_teams",
                "parallelism",
                "One warpgroup issues all products, so tensor cores wait whenever this warpgroup waits. Let two "
                "warpgroups stream down different rows, each with its own ring buffer and producer.",
                {"teams": 2},
                ("batch", "prefetch", "most_slots"),
                gain=1.05,
                helps="latency",
            )
        )
    if not plan.prefetch:
        found.append(
            Transformation(
                "prefetch_patches",
                "latency",
                "Producers wait for image rows to arrive from memory. Prefetch the rows that the producers need next "
                "into L2.",
                {"prefetch": 2},
                ("prefetch", "batch"),
                gain=1.05,
                helps="latency",
            )
        )
    if now["math"] != "fast" and has_fast_form(conv):
        found.append(fast_epilogue())
    return found


def knobs(plan: StreamPlan) -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of the knobs that affect ``plan``."""
    found: dict[str, tuple[Choice, ...]] = {
        "lines": (32, 48, 64, 96, 128),
        "teams": (1, 2),
        "batch": (1, 2, 3, 4),
        "prefetch": (0, 1, 2, 4),
        "most_slots": (6, 8, 12),
    }
    if plan.teams == 1:
        found["loaders"] = (1, 2, 3)
    return found
