"""The first kernel, transformations and knobs of convolutions that build octets in shared memory."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.proposers.playbook.base import Choice, Choices, Recipe, Start, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.patterns.conv.cuda_octets_plan import OctetPlan, first_choices, resolve
from engine.proposers.playbook.patterns.conv.program import ConvProgram
from engine.proposers.playbook.patterns.gemm.tiles import cuda_transformations as tile_transformations

_OPENED = ("fragments", "teams", "batch", "stage_filters")


def start(conv: ConvProgram, plain: Recipe, device: DeviceFact) -> Start:
    """Return the first kernel on Hopper, which builds octets."""
    text = [
        "Multiply pixels by filters with wgmma. Each block keeps the filters in shared memory. Independent teams of "
        "warps load patches of the image, and read the pixels' operands from these patches without im2col."
    ]
    if conv.dtype == "float32":
        text.append("Split each fp32 number into two bf16 numbers and add three products: errors stay below 1e-5.")
    if conv.pool is not None:
        text.append("Pool a tile's results in shared memory, so that the unpooled results never reach global memory.")
    return Start("wgmma", " ".join(text), plain.with_(first_choices(device.cores, wgmma=True), _OPENED))


def build_from_octets(conv: ConvProgram, device: DeviceFact) -> Transformation:
    return Transformation(
        "patch_in_shared_memory",
        "memory",
        "The kernel loads every tap of a pixel from global memory at a separate address. Load a patch of the image "
        "into shared memory once, in groups of 8 elements that are adjacent along k. Let ldmatrix read the operands "
        "of all taps from the patch."
        + (" Split fp32 numbers into two bf16 numbers, with errors below 1e-5." if conv.dtype == "float32" else ""),
        first_choices(device.cores, wgmma=False),
        _OPENED,
        gain=4.0,
        helps="any",
    )


def transformations(conv: ConvProgram, now: Choices) -> list[Transformation]:
    """Return the transformations of a kernel that builds octets."""
    found = []
    if conv.dtype == "float32" and now["arithmetic"] != "fp16":
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
    larger = resolve(conv, {**now, "fragments": 4})
    if now["fragments"] != 4 and larger is not None and larger.fragments == 4:
        found.append(
            Transformation(
                "larger_tiles",
                "compute",
                "Each warp reads all filters for 32 pixels. Give each warp 64 pixels, so that the halo of a patch is "
                "smaller and each loaded filter serves twice as many products. Fewer teams then share the registers.",
                {"fragments": 4, "teams": 2},
                _OPENED,
                gain=1.05,
                helps="memory",
            )
        )
    loads = resolve(conv, {**now, "loaders": True})
    if not now["loaders"] and loads is not None and loads.loader_threads:
        found.append(
            Transformation(
                "loader_warps",
                "latency",
                "A team does not multiply while loading its patch. Add four warps that only load patches: these "
                "warps fill a team's patch while the team writes its results. Move registers from the loading warps "
                "to the teams.",
                {"loaders": True},
                ("batch", "buffers"),
                gain=1.15,
                helps="latency",
            )
        )
    if not now["prefetch"]:
        found.append(
            Transformation(
                "prefetch_patches",
                "latency",
                "A team waits for its patch to arrive from memory. Prefetch the next tile's patch into L2 before "
                "computing the products of this tile.",
                {"prefetch": True},
                ("batch",),
                gain=1.05,
                helps="latency",
            )
        )
    if now["math"] != "fast" and has_fast_form(conv):
        found.append(tile_transformations.fast_epilogue())
    return found


def has_fast_form(conv: ConvProgram) -> bool:
    """Return whether ``fast`` arithmetic changes the epilogue."""
    chains = [conv.chain, *([conv.before] if conv.before is not None else [])]
    return any(chain.values[k].op in FAST_OPS for chain in chains for k in chain.order)


def knobs(conv: ConvProgram, plan: OctetPlan) -> dict[str, tuple[Choice, ...]]:
    """Return the legal values of the knobs that affect ``plan``."""
    found: dict[str, tuple[Choice, ...]] = {
        "fragments": (1, 2, 4),
        "teams": (1, 2, 3, 4),
        "lines": (32, 48, 64, 96, 128),
        "batch": (1, 2, 4, 8),
        "stage_filters": (8, 16, 32),
    }
    if conv.pool is None:
        found["tile_rows"] = (0, 4, 8, 11, 16)
    if plan.wgmma:
        found |= {"buffers": (1, 2), "loaders": (False, True)}
    else:
        found |= {"team_warps": (1, 2, 4, 6, 8), "blocks_per_sm": (1, 2, 3)}
    return found
