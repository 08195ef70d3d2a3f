"""The row family in CUDA C++ as a template: first kernels, moves, knobs."""

from __future__ import annotations

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cuda_rows, cuda_rows_moves
from engine.proposers.playbook.cuda_rows import as_rows
from engine.proposers.playbook.ir import Program, RowProgram
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template


class CudaRows(Template):
    """Row reductions in CUDA C++."""

    name = "rows_cu"
    family = "rows"
    language = "cu"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        as_rows(program)
        text = (
            "One block per row: each thread strides over the row, one walk per reduction with a tree in shared memory, "
            "then one walk to write."
        )
        return [First("plain", text, Recipe(self.name, cuda_rows.plain(device)))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        return cuda_rows_moves.moves(as_rows(program), recipe, device)

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows, now = as_rows(program), recipe.choices
        widths = tuple(w for w in (1, 2, 4) if rows.cols % w == 0)
        clusters = (1, 2, 4, 8) if int(now["arch"]) >= 90 else (1,)
        hints: dict[str, tuple[Choice, ...]] = {"read": ("plain", "stream"), "store": ("plain", "stream")}
        structure = cuda_rows.resolve(rows, now).structure
        if structure == "loop":
            own: dict[str, tuple[Choice, ...]] = {"threads": (128, 256, 512, 1024), "unroll": (1, 2, 4, 8)}
            return {"width": widths, **own, **hints}
        if structure == "registers":
            fits = {
                "threads": tuple(t for t in (64, 128, 256, 512, 1024) if self._holds(rows, now, "threads", t)),
                "cluster": tuple(c for c in (0, *clusters) if self._holds(rows, now, "cluster", c)),
            }
            return {**fits, "blocks": (1, 2, 3, 4, 6, 8), **hints}
        if structure == "split":
            shares = tuple(n for n in (1, 2, 4, 8, 16, 32) if n <= rows.rows)
            return {
                "width": widths,
                "threads": (128, 256, 512, 1024),
                "unroll": (1, 2, 4, 8),
                "span_kb": (16, 32, 64, 128, 256, 512),
                "rows_per_block": shares,
                "group_rows": (0, *shares[:-1]),
                **hints,
            }
        keep: dict[str, tuple[Choice, ...]] = {"keep": (0, 1, 2, 3, 4)} if self._keeps(rows, now) else {}
        shared: dict[str, tuple[Choice, ...]] = {"cluster": clusters[1:]} if int(now["cluster"]) else {}
        return {
            "threads": (256, 384, 512, 768, 992),
            "slot_kb": (4, 8, 16, 32),
            **keep,
            **shared,
            "store": hints["store"],
        }

    @staticmethod
    def _holds(program: RowProgram, now: Choices, knob: str, value: int) -> bool:
        plan = cuda_rows.resolve(program, {**now, knob: value})
        return plan.structure == "registers" and {"threads": plan.threads, "cluster": plan.cluster}[knob] == value

    @staticmethod
    def _keeps(program: RowProgram, now: Choices) -> bool:
        ring = cuda_rows.resolve(program, {**now, "keep": 1}).ring
        return ring is not None and ring.keep > 0

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return cuda_rows.emit(as_rows(program), recipe, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        return recipe.with_({"math": "precise"}) if recipe.choices["math"] != "precise" else None
