"""Extract the bottleneck that an idea addresses and the methods that it uses. All functions are pure.

Two texts about one method may share few words ("stage tiles in shared memory", "keep a block of A in smem"). Two texts
that differ only in the method share many words. Therefore the search compares ideas by the method names below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

BOTTLENECK = "bottleneck"
"""Key in an idea's ``data``. The value is the sentence in which the model names the bottleneck."""
METHOD = "method"
"""Key in an idea's ``data``. The value is the phrase in which the model names the method."""

_BOTTLENECKS = {
    "launches": r"launch overhead|kernel launch|launch cost|several launches|round.?trips? between kernels",
    "latency": r"latenc|dependen|stall|barrier|synchroni[sz]|wait|long scoreboard|issue slots?|serial",
    "occupancy": r"occupanc|idle sms?|too few (?:blocks|warps|threads)|waves?\b|load balanc|underus|utili[sz]",
    "shared memory": r"bank conflict|shared[- ]memory (?:traffic|bandwidth)",
    "memory": r"bandwidth|dram|memory[- ]bound|memory traffic|global (?:loads|memory)|uncoalesced|re-?read|l2\b|cache"
    r"|bytes|traffic|hbm",
    "compute": r"compute[- ]bound|arithmetic|flops?\b|fma|tensor core|sfu|special function|instruction|alu|precision"
    r"|expf?\b|division|adders?\b",
}
"""Regular expressions that recognize bottlenecks. The first match wins."""
_METHODS = {
    "shared-memory tiles": r"shared[- ]memory|smem\b|__shared__|stag(?:e|ing)\b",
    "registers": r"register[- ](?:tile|block|resident)|in registers|micro-?tile|per-thread tile|thread tile",
    "wide loads": r"float4|float2|half2|128[- ]bit|16[- ]byte|vectori[sz]ed (?:load|access|memory)|wider? load"
    r"|vector (?:load|type)",
    "vector units": r"simd|avx|neon|vector (?:units?|registers?|lanes?)|vectori[sz]|lanes",
    "tensor cores": r"tensor[- ]cores?|wmma|\bmma\b|mma\.sync|wgmma|tl\.dot|hmma",
    "bulk copies": r"\btma\b|bulk cop|cp\.async\.bulk|tensor map",
    "asynchronous copies": r"cp\.async|async(?:hronous)? cop|memcpy_async|prefetch",
    "pipelining": r"double[- ]buffer|triple[- ]buffer|ping-?pong|multi-?stage|pipelin|num_stages|overlap",
    "unrolling": r"unroll|independent (?:loads|accumulators|sums)|partial sums|instruction[- ]level"
    r"|more loads in flight",
    "warp shuffles": r"shuffle|shfl|warp[- ]level|warp reduc|butterfly",
    "one pass": r"online|one[- ]pass|single[- ]pass|welford|running (?:max|sum|mean)",
    "fusion": r"\bfus(?:e|ed|es|ing|ion)\b|epilogue|one kernel|single (?:kernel|launch)|fewer launches|cooperative",
    "persistent blocks": r"persistent|grid[- ]stride|work queue|one wave",
    "split reduction": r"split[- ]k|stream-k|split(?:ting)? (?:the )?(?:reduction|rows?|k\b)|two[- ]phase|atomic",
    "split operands": r"hi/?lo|split (?:operands?|products?)|two[- ]term|bf16x3|3xtf32|tf32x3|error[- ]compensat",
    "lower precision": r"\bfp16\b|\bbf16\b|half[- ]precision|\btf32\b|\bfp8\b|lower precision",
    "fast math": r"__expf|ex2\b|exp2|approx|rsqrt|polynomial|fast[- ]math|reciprocal",
    "conflict-free layout": r"swizzl|bank[- ]conflict|padd(?:ed|ing)|xor layout|transpos",
    "implicit GEMM": r"implicit[- ]gemm|im2col|as a (?:gemm|matrix product)",
    "winograd": r"winograd|\bfft\b",
    "occupancy": r"launch_bounds|fewer registers|smaller blocks|occupanc|num_warps",
    "cache hints": r"__ldg|read-only cache|evict|streaming store|__stcs|cache hint|non-?temporal|l2 (?:resid|persist)",
    "clusters": r"\bclusters?\b|distributed shared|dsmem|multicast",
    "warp specialization": r"speciali[sz]|producer|consumer",
    "index arithmetic": r"precomput|index (?:arithmetic|math|computation)|divisions?\b|strength reduc|lookup table",
    "blocking": r"cache block|loop (?:order|interchange|tiling)|\btil(?:e|es|ed|ing)\b|block (?:size|shape)",
    "threads": r"openmp|threads? with static|static chunks|parallel for|first touch",
    "autotuning": r"autotun",
}
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _METHODS.items())
_COMPILED_BOTTLENECKS = tuple((name, re.compile(pattern)) for name, pattern in _BOTTLENECKS.items())


class Gist(Struct, frozen=True):
    """The bottleneck and the methods of an idea. ``bottleneck`` is "" and ``methods`` is empty if the idea's text uses
    none of the known terms.
    """

    bottleneck: str
    methods: frozenset[str]


def gist_of(text: str, data: Mapping[str, Any]) -> Gist:
    """Return the bottleneck and the methods of the idea ``text``. The model's own words in ``data`` take precedence."""
    bottleneck, method = (str(data.get(key) or "").lower() for key in (BOTTLENECK, METHOD))
    low = text.lower()
    named = frozenset(name for name, pattern in _COMPILED if pattern.search(method))
    return Gist(
        _first_bottleneck(bottleneck) or _first_bottleneck(method) or _first_bottleneck(low),
        named or frozenset(name for name, pattern in _COMPILED if pattern.search(low)),
    )


def _first_bottleneck(text: str) -> str:
    return next((name for name, pattern in _COMPILED_BOTTLENECKS if pattern.search(text)), "")
