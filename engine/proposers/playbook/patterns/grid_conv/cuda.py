"""The CUDA template for grid convolutions: a thread per output, or products on tensor cores."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS, compute_capability
from engine.proposers.playbook.patterns.gemm.tiles import cuda_transformations as tile_transformations
from engine.proposers.playbook.patterns.grid_conv import cuda_plan
from engine.proposers.playbook.patterns.grid_conv.cuda_kernel import direct_kernel, grid_kernel
from engine.proposers.playbook.patterns.grid_conv.cuda_plan import GridPlan
from engine.proposers.playbook.patterns.grid_conv.program import GridConvProgram, as_grid_conv

_OPENED = ("bm", "bn", "stages", "repeat")


class CudaGridConv(Template):
    """Grid convolutions in CUDA C++ for fp32, fp16 and bf16 operands. Sums use fp32."""

    name = "grid_conv_cu"
    pattern = "grid_conv"
    language = "cu"

    def refusal(self, program: Program) -> str | None:
        conv = as_grid_conv(program)
        if conv.plane >= 2**30 or max(conv.image) >= 2**30 or conv.chain.numel >= 2**38:
            return "the convolution's images are too large for the kernels' index types"
        return None

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        conv, arch = as_grid_conv(program), compute_capability(device.arch)
        direct = Recipe(self.name, {"structure": "direct", "math": "precise", "arch": arch})
        found = [
            Start(
                "direct",
                "Give each output a thread that reads the output's taps from global memory and sums the products.",
                direct,
            ),
        ]
        if cuda_plan.refusal(conv, arch) is None:
            wgmma = arch == 90
            recipe = direct.with_(cuda_plan.first_choices(conv, wgmma), _OPENED)
            found.insert(0, Start("wgmma" if wgmma else "tensor_cores", _text(conv), recipe))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        conv, now = as_grid_conv(program), recipe.choices
        found = []
        if _plan(conv, recipe) is None:
            if cuda_plan.refusal(conv, int(now["arch"])) is None:
                found.append(
                    Transformation(
                        "shifted_grids",
                        "compute",
                        _text(conv),
                        cuda_plan.first_choices(conv, int(now["arch"]) == 90),
                        _OPENED,
                        gain=20.0,
                        helps="compute",
                    )
                )
        elif conv.dtype == "float32" and now["arithmetic"] != "fp16":
            found.append(
                Transformation(
                    "fp16_tensor_cores",
                    "precision",
                    "Round operands to fp16 (10 bits of mantissa) and multiply once, with fp32 accumulators. The "
                    "kernel then needs a third of the products and half the traffic. The relative error rises to "
                    "about 1e-3, and numbers above 65504 become infinite.",
                    {"arithmetic": "fp16"},
                    _OPENED,
                    gain=2.0,
                    helps="compute",
                )
            )
        if now["math"] != "fast" and any(conv.chain.values[k].op in FAST_OPS for k in conv.chain.order):
            found.append(tile_transformations.fast_epilogue())
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        plan = _plan(as_grid_conv(program), recipe)
        if plan is None:
            return {}
        found: dict[str, tuple[Choice, ...]] = {
            "bm": (128, 256), "bn": (16, 32, 48, 64, 96, 128), "stages": (2, 3, 4, 5, 6), "repeat": (1, 4, 8, 16),
        }  # fmt: skip
        return found if plan.wgmma else found | {"warps_n": (1, 2, 4)}

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        conv, fast = as_grid_conv(program), recipe.choices["math"] == "fast"
        plan = _plan(conv, recipe)
        return direct_kernel(conv, spec, fast) if plan is None else grid_kernel(conv, plan, spec, fast)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        changes: Choices = {"math": "precise"}
        if as_grid_conv(program).dtype == "float32" and recipe.choices["structure"] == cuda_plan.STRUCTURE:
            changes |= {"arithmetic": "bf16x3"} if recipe.choices["arithmetic"] == "fp16" else {"structure": "direct"}
        exact = recipe.with_(changes)
        return exact if exact.choices != recipe.choices else None


def _plan(conv: GridConvProgram, recipe: Recipe) -> GridPlan | None:
    """Return the plan of a kernel on tensor cores, or None for a kernel with a thread per output."""
    if recipe.choices["structure"] != cuda_plan.STRUCTURE:
        return None
    if cuda_plan.refusal(conv, int(recipe.choices["arch"])) is not None:
        return None
    return cuda_plan.resolve(conv, recipe.choices)


def _text(conv: GridConvProgram) -> str:
    text = (
        "Write the input once as 16-byte octets of channels on a line of positions, with zeros between rows. Every "
        "tap then reads at a constant distance on this line, so tensor cores multiply shifted tiles without bounds "
        "checks."
    )
    if conv.transposed and max(conv.stride) > 1:
        text += (
            " Split the outputs into phases by their positions modulo the stride. Each phase is a dense convolution."
        )
    if conv.dtype == "float32":
        text += " Split each fp32 number into two bf16 numbers and add three products: errors stay below 1e-5."
    return text
