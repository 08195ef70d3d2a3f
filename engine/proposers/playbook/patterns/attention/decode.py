"""Attention with few queries and many keys: the supported problems, the recipe's choices, and the kernel file."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.c_header import ctype
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Recipe, Transformation
from engine.proposers.playbook.codegen.rendering import render
from engine.proposers.playbook.codegen.signature import launch_signature
from engine.proposers.playbook.ir.sizes import factor, text
from engine.proposers.playbook.patterns.attention import cuda_plan
from engine.proposers.playbook.patterns.attention.cuda_text import scale_of
from engine.proposers.playbook.patterns.attention.program import AttentionProgram
from engine.proposers.playbook.patterns.gemm.tiles.cuda_finish import (
    conversions,
    dtypes_of,
    finish,
    helpers,
    pointers,
    tensors_struct,
)

STRUCTURE = "decode"
IDEA = (
    "With few queries, the kernel spends its time reading keys and values. Let a team of lanes share a key, 16 bytes "
    "per lane, with several keys in flight and a running maximum per team. Split the keys among several times as many "
    "blocks as the GPU runs at once, and combine the blocks' results. Multiprocessors with more bandwidth then run "
    "more blocks."
)
_MOST_QUERIES = 4
"""Maximum number of queries that share the same keys. With more queries, other structures read less, because they load
each key once for several queries.
"""
_FEWEST_KEYS = 128
_SHARED_BYTES = 208 * 1024
"""Shared memory of a multiprocessor that blocks can use for rings, in bytes."""
KNOBS: dict[str, tuple[Choice, ...]] = {
    "threads": (64, 128, 256, 512),
    "unroll": (1, 2, 4, 8),
    "work": (1, 2, 3, 4, 6, 8),
    "waves": (1, 2, 3, 4, 8),
}


def refusal(program: AttentionProgram) -> str | None:
    """Return why the decode structure does not support ``program``, as a clause that completes "because ...". Return
    None if the structure supports ``program``.
    """
    if program.rows > _MOST_QUERIES:
        return f"more than {_MOST_QUERIES} queries share the same keys"
    if program.causal:
        return "the attention is causal, so the first queries see only the first keys"
    if program.keys < _FEWEST_KEYS:
        return f"the attention has fewer than {_FEWEST_KEYS} keys"
    if program.k.col_stride != 1 or program.v.col_stride != 1:
        return "the keys or values are not contiguous"
    if max(program.width, program.value_width) > 512:
        return "the attention's rows are longer than 512 elements"
    return None


def recipe(template: str, program: AttentionProgram, device: DeviceFact) -> Recipe:
    """Return the recipe of the first decode kernel."""
    choices: Choices = cuda_plan.plain(device) | {
        "structure": STRUCTURE, "threads": 256, "unroll": 4, "work": 2, "waves": 4, "math": "fast",
        "sms": max(1, device.cores),
    }  # fmt: skip
    return Recipe(template, choices, ("threads", "unroll", "work", "waves"))


def transformations(now: Choices) -> list[Transformation]:
    """Return the transformations of a decode kernel."""
    found = []
    if int(now["unroll"]) < 8:
        found.append(
            Transformation(
                "more_keys_in_flight",
                "latency",
                "A load takes hundreds of cycles. Let each team of lanes request more keys and values before it uses "
                "the first.",
                {"unroll": 2 * int(now["unroll"])},
                ("unroll", "threads"),
                gain=1.05,
                helps="memory",
            )
        )
    if int(now["work"]) < 4:
        found.append(
            Transformation(
                "more_blocks",
                "parallelism",
                "A multiprocessor waits while its few blocks finish a query. Keep twice as many blocks with smaller "
                "rings on each multiprocessor.",
                {"work": 2 * int(now["work"])},
                ("work", "threads", "unroll"),
                gain=1.02,
                helps="memory",
            )
        )
    return found


def _waves(choices: Choices) -> int:
    return int(choices.get("waves", 1))


def kernel(program: AttentionProgram, choices: Choices, spec: ProblemSpec) -> str:
    """Return the kernel source."""
    names = pointers([program.chain], program.q.tensor, program.k.tensor, program.v.tensor)
    dtypes = dtypes_of(spec)
    steps = [program.width, program.value_width]
    for operand in (program.k, program.v):
        steps += [operand.row_stride, operand.offset, *(step for _, step in operand.batch)]
    return render(
        "attention_decode.cu.j2",
        element=ctype(program.dtype, "cu"),
        queries=text(program.rows),
        keys=text(program.keys),
        width=text(program.width),
        values=text(program.value_width),
        batch=text(program.batch),
        scale=scale_of(program),
        size_assertions=program.size_assertions,
        functions=conversions({program.dtype, *(dtypes[name] for name in names)}) + helpers([program.chain]),
        tensors=tensors_struct(spec, names),
        finish=finish(program.chain, program.value_width, choices["math"] == "fast"),
        steps=list(dict.fromkeys(factor(step) for step in steps if step)),
        threads=int(choices["threads"]),
        unroll=int(choices["unroll"]),
        work=int(choices["work"]),
        waves=_waves(choices),
        hopper=int(choices["arch"]) == 90,
        ring_bytes=_SHARED_BYTES // max(1, min(int(choices["work"]), 4)) // 1024 * 1024,
        contiguous=_contiguous(program),
        stream_loads=True,
        sms=int(choices["sms"]),
        q=program.q.pointer,
        k=program.k.pointer,
        v=program.v.pointer,
        q_at=program.q.at("i", "d"),
        k_at=program.k.at("j", "d"),
        v_at=program.v.at("j", "d"),
        arguments=", ".join(names),
        launch=launch_signature(spec, "cu", frozenset((*names, "stream", "workspace"))),
    )


def _contiguous(program: AttentionProgram) -> str:
    """Return a C expression that is true if each matrix's keys and values are contiguous."""
    pairs = ((program.k.row_stride, program.width), (program.v.row_stride, program.value_width))
    return " && ".join(f"{text(step)} == {text(size)}" for step, size in pairs)
