"""Row reductions (softmax, layernorm, rmsnorm and kin) in plain CUDA C++: recipes, and what a recipe emits.

Structures, from plain to fast: ``loop`` (a block per row, one walk per reduction), ``registers`` (a row is read once
and stays in registers), ``split`` (a long row over many blocks, three launches), ``ring`` (persistent blocks fed by
bulk copies). ``cuda_rows_moves`` says how one leads to the next.
"""

from __future__ import annotations

import re

from msgspec import Struct

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cuda_rows_block import loop_text, registers_text
from engine.proposers.playbook.cuda_rows_code import RowCode, stages_of
from engine.proposers.playbook.cuda_rows_ring import (
    RingPlan,
    plan_ring,
    ring_constants,
    ring_text,
    ring_workspace_bytes,
)
from engine.proposers.playbook.cuda_rows_split import split_text
from engine.proposers.playbook.cuda_text import fill, launch
from engine.proposers.playbook.ir import Program, RowProgram
from engine.proposers.playbook.template import Choices, Recipe

PLAIN: Choices = {
    "structure": "loop",
    "fused": False,
    "merge": "tree",
    "width": 1,
    "threads": 256,
    "unroll": 1,
    "read": "plain",
    "store": "plain",
    "math": "precise",
    "cluster": 1,
    "blocks": 1,
    "span_kb": 256,
    "group_rows": 0,
    "rows_per_block": 1,
    "slot_kb": 16,
    "keep": 0,
    "sms": 0,
    "arch": 80,
}
"""Round 0. ``cluster``: blocks that share a row (0: a warp has its own in ``registers``, the whole grid in ``ring``).
``blocks``: blocks per multiprocessor that the compiler leaves registers for (``ring``: that share its memory).
``span_kb``: what a block of ``split`` folds. ``group_rows``: rows of ``split`` per round of launches (0: all).
``keep``: pieces of a row whose weights stay in registers. ``sms`` and ``arch`` are the device's.

Measured on one NVIDIA H200 (CUDA 13.0, cold L2, median of 15, ``benchmarks/templates.py measure``), in ms:

softmax 4096 x 65536 (floor 0.499, eager 1.05, torch.compile 0.78): plain 1.22; loop, width 4, one walk, 1024 threads,
unroll 8: 0.67; registers, cluster 8 of 512 threads: 0.69 (4 of 512: 0.74, 32 floats a thread spill); ring, cluster 2,
768 threads, 16 KB slots: 0.58 (512: 0.59; plain stores 0.61 to 0.97; two half rings on a multiprocessor 0.61; cluster
4 with one block each 0.69, because clusters of four do not fill all multiprocessors).

layernorm 16 x 4194304 (floor 0.133, eager 8.1 to 8.4, torch.compile 0.32 to 0.37): plain 6.7; split with scalar
weights per row 0.319; with the weights read once for 16 rows 0.218 (spans of 64 KB: 0.223; streaming reads 0.236, the
last rows then miss L2); in groups of 4 rows 0.28, of 1 row 0.48 (launches do not overlap); ring over the whole grid
0.265 at best (512 threads, 16 KB slots, keep 2; keep 0: 0.303; keep 4 spills: 0.291), where the exchange costs about
as much as the second read that it saves."""

MOST_GRID_ROWS = 65535
"""Rows are a dimension of the grid in ``split``."""
HELD_FLOATS = 64
"""Floats of a row that one thread may hold in registers."""


def arch_number(arch: str) -> int:
    """``sm_90a`` gives 90; 80 where it cannot be read."""
    found = re.search(r"\d+", arch)
    return int(found.group()) if found else 80


def plain(device: DeviceFact) -> Choices:
    """The choices of round 0 on ``device``."""
    return {**PLAIN, "sms": device.cores, "arch": arch_number(device.arch)}


def full_width(cols: int) -> int:
    """Elements of the widest pack (at most 16 bytes) that divides a row."""
    return next(w for w in (4, 2, 1) if cols % w == 0)


class Plan(Struct, frozen=True):
    """What the choices come to for a program: every knob clamped to what is legal."""

    structure: str
    code: RowCode
    threads: int
    cluster: int
    ring: RingPlan | None = None


def resolve(program: RowProgram, choices: Choices) -> Plan:
    """The structure that is emitted. Where the wanted one cannot hold the row, the nearest that can."""
    wanted = str(choices["structure"])
    width = min(int(choices["width"]), full_width(program.cols))
    fused = bool(choices["fused"]) or wanted != "loop"
    code = RowCode(
        program,
        width=width,
        fused=fused,
        fast=choices["math"] == "fast",
        read_hint=str(choices["read"]),
        store_hint=str(choices["store"]),
    )
    threads, cluster = int(choices["threads"]), int(choices["cluster"])
    hopper = int(choices["arch"]) >= 90
    if wanted == "split" and len(code.stages) == 1:
        return Plan("split", code, threads, 1)
    if wanted == "ring" and hopper:
        for group in (cluster, *(g for g in (2, 4, 8) if cluster and g > cluster), 0):
            ring = _ring(code, group, choices)
            if ring is not None:
                return Plan("ring", code, min(threads, 992), group, ring)
    if wanted in ("registers", "ring"):
        for sharing in (cluster, 0, 1, *((2, 4, 8) if hopper else ())):
            if (sharing <= 1 or hopper) and sharing >= cluster and held_floats(code, threads, sharing) <= HELD_FLOATS:
                return Plan("registers", code, threads, sharing)
    return Plan("loop", code, threads, 1)


def held_floats(code: RowCode, threads: int, cluster: int) -> int:
    """Floats of the row in one thread's registers (``cluster`` 0: a warp has the row)."""
    sharers = threads * cluster if cluster else 32
    return -(-code.program.cols // (code.width * sharers)) * code.width * max(1, len(code.held))


def _ring(code: RowCode, cluster: int, choices: Choices) -> RingPlan | None:
    group = cluster if cluster else int(choices["sms"]) * max(1, int(choices["blocks"]))
    if group < 1 or (not cluster and code.program.rows > 4096):
        return None
    keep = int(choices["keep"]) if code.out_extras and code.out_extras_by_column else 0
    blocks = max(1, int(choices["blocks"]))
    return plan_ring(code, group=group, slot_bytes=int(choices["slot_kb"]) * 1024, keep=keep, blocks=blocks)


def emit(program: RowProgram, recipe: Recipe, spec: ProblemSpec) -> str:
    """The kernel source for ``recipe``."""
    choices = recipe.choices
    plan = resolve(program, choices)
    code, threads = plan.code, plan.threads
    workspace = ""
    if plan.structure == "split":
        group_rows = int(choices["group_rows"]) or MOST_GRID_ROWS
        text, body = split_text(
            code,
            threads=threads,
            unroll=int(choices["unroll"]),
            span_floats=int(choices["span_kb"]) * 256,
            group_rows=min(group_rows, MOST_GRID_ROWS),
            rows_per_block=int(choices["rows_per_block"]),
        )
        workspace = "sizeof(playbook::Workspace)"
    elif plan.ring is not None:
        text, body = ring_text(
            code,
            threads=threads,
            cluster=plan.cluster,
            blocks=max(1, int(choices["blocks"])),
            sms=int(choices["sms"]),
            plan=plan.ring,
        )
        if not plan.cluster:
            text = ring_constants(code) + text
            workspace = ring_workspace_bytes(code)
    elif plan.structure == "registers":
        text, body = registers_text(
            code,
            threads=threads,
            cluster=max(1, plan.cluster),
            warp_rows=plan.cluster == 0,
            blocks=int(choices["blocks"]),
        )
    else:
        tree = choices["merge"] == "tree"
        text, body = loop_text(code, threads=threads, unroll=int(choices["unroll"]), tree=tree)
    tensors = ", ".join(code.tensors)
    used = (*code.tensors, *(("workspace",) if workspace else ()))
    size = f'extern "C" size_t workspace_bytes(void) {{ return {workspace}; }}\n' if workspace else ""
    return (
        "#include <cuda_runtime.h>\n\nnamespace playbook {\n\n"
        + code.text(spec)
        + text
        + "\n}  // namespace playbook\n\n"
        + size
        + launch(spec, used, [fill(line, tensors=tensors) for line in body])
    )


def as_rows(program: Program) -> RowProgram:
    """``program``, which the family takes only with reductions."""
    if not isinstance(program, RowProgram):
        raise TypeError("the row family was given a pointwise program; the analysis chose the wrong family")
    return program


def single_stage(program: RowProgram) -> bool:
    """Whether one walk over a row finds all reductions."""
    return len(stages_of(program, True)) == 1
