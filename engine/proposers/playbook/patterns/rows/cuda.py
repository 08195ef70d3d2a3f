"""The CUDA template for row reductions."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Choices, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.ir.program import RowProgram, as_rows
from engine.proposers.playbook.patterns.rows import cuda_plan, cuda_transformations
from engine.proposers.playbook.patterns.rows.cuda_kernel import row_kernel

_STRUCTURES = {
    "loop": "blocks that read 16 bytes per load, with several loads in flight, and compute all reductions in one pass.",
    "registers": "blocks that read a row once, keep the row in registers, and compute the outputs from there.",
    "split": "many blocks that share each row, and a second launch that merges the blocks' partial states.",
    "ring": "persistent blocks that copy row after row into a ring in shared memory and read each row once.",
    "block": "blocks that read a row once and hold the row in shared memory and registers.",
}


class CudaRows(Template):
    """Row reductions in CUDA C++."""

    name = "rows_cu"
    pattern = "rows"
    language = "cu"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        rows = as_rows(program)
        text = (
            "Give each row a block whose threads stride over the row. Each reduction takes one pass, with a tree in "
            "shared memory, and a last pass writes the outputs."
        )
        plain = Start("plain", text, Recipe(self.name, cuda_plan.plain(device)))
        tuned = cuda_transformations.best_known(rows, plain.recipe, device)
        how = _STRUCTURES[cuda_plan.resolve(rows, tuned.choices).structure]
        found = [Start("best_known", f"Use the structure that was fastest for rows of this shape: {how}", tuned), plain]
        known = {one.name: one for one in self.transformations(program, tuned, device)}
        large = tuned.choices["structure"] == "ring"
        if large and (halves := known.get("rows_in_16_bits")) is not None:
            short = tuned.with_(halves.changes, halves.opens)
            found.insert(0, Start("16_bits", halves.text, short, halves.tolerance))
        return found

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        return cuda_transformations.transformations(as_rows(program), recipe, device)

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows, now = as_rows(program), recipe.choices
        widths = tuple(w for w in (1, 2, 4) if rows.cols % w == 0)
        clusters = (1, 2, 4, 8) if int(now["arch"]) >= 90 else (1,)
        hints: dict[str, tuple[Choice, ...]] = {"read": ("plain", "stream"), "store": ("plain", "stream")}
        structure = cuda_plan.resolve(rows, now).structure
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
        if structure == "block":
            return {
                "threads": tuple(t for t in (256, 512, 768, 1024) if self._is(rows, now, "block", {"threads": t})),
                "keep": (0, 1, 2, 3, 4, 6, 8),
                "unroll": (1, 2, 4),
                "blocks": tuple(b for b in (1, 2, 3) if self._is(rows, now, "block", {"blocks": b})),
                **hints,
            }
        if structure == "halves":
            return {
                "threads": tuple(t for t in (256, 384, 512, 768) if self._is(rows, now, "halves", {"threads": t})),
                "per": tuple(p for p in (1, 2, 3, 4, 5, 6, 8) if self._is(rows, now, "halves", {"per": p})),
                "slots": (2, 3, 4, 6),
            }
        keep: dict[str, tuple[Choice, ...]] = (
            {"keep": (0, 1, 2, 3, 4, 6, 8, 9, 10, 11)} if self._keeps(rows, now) else {}
        )
        shared: dict[str, tuple[Choice, ...]] = {"cluster": clusters[1:]} if int(now["cluster"]) else {}
        return {
            "threads": (128, 256, 384, 512, 768, 992),
            "writers": (0, 256, 384, 512, 640),
            "slot_kb": (4, 6, 8, 16, 32),
            "read": hints["read"],
            **keep,
            **shared,
            "store": hints["store"],
        }

    @staticmethod
    def _holds(program: RowProgram, now: Choices, knob: str, value: int) -> bool:
        plan = cuda_plan.resolve(program, {**now, knob: value})
        return plan.structure == "registers" and {"threads": plan.threads, "cluster": plan.cluster}[knob] == value

    @staticmethod
    def _is(program: RowProgram, now: Choices, structure: str, changes: Choices) -> bool:
        return cuda_plan.resolve(program, {**now, **changes}).structure == structure

    @staticmethod
    def _keeps(program: RowProgram, now: Choices) -> bool:
        ring = cuda_plan.resolve(program, {**now, "keep": 1}).ring
        return ring is not None and ring.keep > 0

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return row_kernel(as_rows(program), recipe.choices, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        changes: Choices = {"math": "precise"}
        if recipe.choices["structure"] == "halves":
            changes |= cuda_transformations.EXACT_RING
        exact = recipe.with_(changes)
        return exact if exact.choices != recipe.choices else None
