"""The CUDA template for pointwise chains."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.ir.program import as_pointwise
from engine.proposers.playbook.patterns.pointwise.cuda_kernel import pointwise_kernel

PLAIN: Choices = {
    "width": 1,
    "threads": 256,
    "unroll": 1,
    "persistent": False,
    "blocks": 4,
    "read": "plain",
    "store": "plain",
    "math": "precise",
    "sms": 0,
}
"""The choices of the plain kernel: a thread per element. If ``persistent``, the kernel uses a grid-stride loop with
``blocks`` blocks per multiprocessor.
"""


class CudaPointwise(Template):
    """Pointwise chains in CUDA C++."""

    name = "pointwise_cu"
    pattern = "pointwise"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        text = (
            "Give each element a thread that computes the whole chain in registers, so that no intermediate goes to "
            "memory."
        )
        plain = Recipe(self.name, {**PLAIN, "sms": device.cores})
        wide = plain.with_({"width": 4, "read": "stream", "store": "stream", "math": "fast"}, ("threads", "unroll"))
        return [
            Start("vectors", f"{text} Load and store 16 bytes per instruction, with evict-first stores.", wide),
            Start("plain", text, plain),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        chain, now = as_pointwise(program), recipe.choices
        found: list[Transformation] = []
        if now["width"] != 4:
            found.append(
                Transformation(
                    "vector_loads",
                    "memory",
                    "Load and store 16 bytes per instruction (float4), to move the same data with a quarter of the "
                    "memory instructions.",
                    {"width": 4},
                    ("width", "threads"),
                    gain=1.5,
                    helps="memory",
                )
            )
        elif now["unroll"] == 1:
            found.append(
                Transformation(
                    "loads_in_flight",
                    "latency",
                    "Let each thread issue several independent loads before it uses the first one, to hide memory "
                    "latency.",
                    {"unroll": 2},
                    ("unroll", "threads"),
                    gain=1.05,
                    helps="latency",
                )
            )
        if now["store"] != "stream":
            found.append(
                Transformation(
                    "streaming_stores",
                    "memory",
                    "Nothing reads the results again. Write the results with evict-first stores, so that the results "
                    "do not push inputs out of L2.",
                    {"store": "stream"},
                    ("store", "read"),
                    gain=1.04,
                    helps="memory",
                )
            )
        if now["math"] != "fast" and any(chain.values[k].op in FAST_OPS for k in chain.order):
            found.append(
                Transformation(
                    "fast_math",
                    "compute",
                    "Use the special-function unit: exp as one exp2 with log2(e) folded in, tanh and sigmoid from "
                    "this exp, and a fast reciprocal for each division. The error stays near 1e-6.",
                    {"math": "fast"},
                    (),
                    gain=1.1,
                    helps="compute",
                )
            )
        blocks = chain.numel // (int(now["width"]) * int(now["threads"]) * int(now["unroll"]))
        if not now["persistent"] and device.cores and blocks > device.cores * int(now["blocks"]):
            found.append(
                Transformation(
                    "persistent_grid",
                    "parallelism",
                    "Start only as many blocks as the device can run at the same time. Let each block process data "
                    "in a grid-stride loop, so that blocks start only once.",
                    {"persistent": True},
                    ("blocks", "threads"),
                    gain=1.0,
                )
            )
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        # These times in ms are for fp32 gelu of 8192 x 16384, written in primitives, on an NVIDIA H200
        # (benchmarks/templates.py measure). The SOL is 0.250, torch.compile takes 0.256, and eager takes 2.75. The
        # plain kernel takes 0.42. With width 4, fast math, streaming and 256 threads, the kernel takes 0.267 at unroll
        # 1, and 0.28 at unroll 2 or 4. A persistent grid of 4 blocks per multiprocessor takes 0.28 to 0.31.
        found: dict[str, tuple[Choice, ...]] = {
            "width": (1, 2, 4),
            "threads": (128, 256, 512, 1024),
            "unroll": (1, 2, 4, 8),
            "read": ("plain", "stream"),
            "store": ("plain", "stream"),
        }
        if recipe.choices["persistent"]:
            found["blocks"] = (1, 2, 4, 8, 16)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return pointwise_kernel(as_pointwise(program), recipe.choices, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        return recipe.with_({"math": "precise"}) if recipe.choices["math"] != "precise" else None
