"""Transformations and knobs of attention with wgmma."""

from __future__ import annotations

from engine.proposers.playbook.base import Choice, Choices, Transformation
from engine.proposers.playbook.codegen.cuda import FAST_OPS
from engine.proposers.playbook.patterns.attention.hopper import Plan, resolve, stores_plainly
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_transformations import fast_epilogue

IDEA = (
    "Compute both matrix products with warpgroup instructions (wgmma), and keep the scores in registers for the "
    "softmax. A producer thread fills a ring buffer with tiles of keys and values through tensor maps. Several "
    "warpgroups with 64 queries each share these tiles, so that tensor cores multiply for one warpgroup while another "
    "computes exponentials. Blocks stay resident and process tile after tile of queries."
)
KNOBS: dict[str, tuple[Choice, ...]] = {
    "groups": (1, 2, 3, 4),
    "keys": (32, 64, 128),
    "stages": (2, 3, 4, 6, 8),
    "turns": (False, True),
}


def transformations(program: AttentionProgram, now: Choices) -> list[Transformation]:
    """Return the transformations of an attention kernel with wgmma."""
    plan, found = resolve(program, now), []
    if _differs(program, now, plan, {"turns": True}):
        found.append(
            Transformation(
                "take_turns",
                "parallelism",
                "The tensor cores are idle while all warpgroups compute exponentials. Let the warpgroups take turns "
                "issuing products, so that one warpgroup computes exponentials during the products of another.",
                {"turns": True},
                ("turns",),
                gain=1.03,
                helps="latency",
            )
        )
    if _differs(program, now, plan, {"groups": 2, "keys": 128}):
        found.append(
            Transformation(
                "longer_key_tiles",
                "compute",
                "Every tile of keys costs barriers and warp votes. Give each warpgroup more registers, and use tiles "
                "of 128 keys.",
                {"groups": 2, "keys": 128},
                ("groups", "keys", "stages"),
                gain=1.02,
                helps="latency",
            )
        )
    if _differs(program, now, plan, {"groups": plan.groups + 1}):
        found.append(
            Transformation(
                "share_key_tiles",
                "memory",
                "Every block loads all keys and values. Let one more warpgroup share the keys and values, so that "
                "each load serves more queries.",
                {"groups": plan.groups + 1},
                ("groups", "keys", "stages"),
                gain=1.05,
                helps="memory",
            )
        )
    slow = {program.chain.values[k].op for k in program.chain.order} & FAST_OPS
    if now["math"] != "fast" and slow and not stores_plainly(program):
        found.append(fast_epilogue())
    return found


def _differs(program: AttentionProgram, now: Choices, plan: Plan, changes: Choices) -> bool:
    """Return whether ``changes`` lead to a new plan in which each changed choice has the requested value."""
    other = resolve(program, now | changes)
    wanted = {"groups": other.groups, "keys": other.tile_keys, "turns": other.turns}
    return other != plan and all(wanted[key] == value for key, value in changes.items())
