"""The C++ template for reductions over any dimensions."""

from __future__ import annotations

from msgspec.structs import replace

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import EXPONENTIALS
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.ir.reductions import ReductionProgram
from engine.proposers.playbook.patterns.reductions.cpp_kernel import ReductionOptions, reduction_kernel
from engine.proposers.playbook.patterns.reductions.program import POSITIONS, as_reductions
from engine.proposers.playbook.transformations import cpp as shared

_TILES = (64, 128, 256, 512, 1024, 2048)


class CppReductions(Template):
    """Reductions over any dimensions in C++ with OpenMP and GCC's vector extensions."""

    name = "reductions_cpp"
    pattern = "reductions"
    language = "cpp"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        found = as_reductions(program)
        lanes = 1 if _finds_positions(found) else shared.usual_lanes(device)
        first = ReductionOptions(lanes=lanes, math="polynomial", parallel=device.cores > 1, accumulators=4)
        text = (
            "Run all steps on a tile of adjacent rows while the tile is in the cache. Read memory in address order, in "
            "vectors, and share the tiles among the threads."
        )
        if not found.geometry.adjacent:
            first = replace(first, tile=_tile(found, device))
        if _tiles(found, first) < 2 * device.cores and device.cores > 1:
            first = replace(first, order="passes", parts=2 * device.cores)
            text = (
                "Split every row into parts, so that all threads have work. Fold the parts into states in the "
                "workspace, and merge the states before the next step."
            )
        plain = ReductionOptions(tile=first.tile)
        scalar = "Fold a tile of adjacent rows at a time with scalar code on one core. The code is easy to check."
        return [
            Start("tiles", text, Recipe(self.name, choices_of(first), ("tile", "accumulators"))),
            Start("plain", scalar, Recipe(self.name, choices_of(plain))),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        rows, now = as_reductions(program), options_of(ReductionOptions, recipe.choices)
        found = []
        if now.lanes == 1 and not _finds_positions(rows):
            found.append(shared.vectorize("", {"accumulators": 4}, device))
        if now.lanes == 16:
            found.append(shared.narrower_vectors())
        if not now.parallel and device.cores > 1:
            found.append(_share_tiles(device.cores))
        if now.parallel and now.schedule == "static":
            found.append(shared.dynamic_schedule("tiles", {}, ("schedule",)))
        if now.parallel and now.order == "tiles" and _tiles(rows, now) < 8 * device.cores:
            found.append(_share_parts(device.cores))
        if now.order == "passes":
            found.append(_tile_at_a_time(len(rows.passes)))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        rows, now = as_reductions(program), options_of(ReductionOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {}
        if not rows.geometry.adjacent:
            found["tile"] = _TILES
        elif now.lanes > 1:
            found["accumulators"] = (1, 2, 4, 8)
        if now.lanes > 1:
            found["lanes"] = shared.lanes_knob(device)
        if now.parallel:
            found["schedule"] = ("static", "guided", "dynamic")
        if now.order == "passes":
            found["parts"] = tuple(k * max(1, device.cores) for k in (1, 2, 4, 8))
        if now.math == "polynomial" and any(value.op in EXPONENTIALS for value in rows.values):
            found["exp_degree"] = (5, 6)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return reduction_kernel(as_reductions(program), options_of(ReductionOptions, recipe.choices), spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        return recipe.with_({"math": "libm"}) if recipe.choices["math"] != "libm" else None


def _finds_positions(program: ReductionProgram) -> bool:
    return any(one.op in POSITIONS for one in program.reductions)


def _tile(program: ReductionProgram, device: DeviceFact) -> int:
    """Return the widest tile that still gives every core several tiles."""
    wanted = program.geometry.rows // (4 * max(1, device.cores))
    return max((tile for tile in _TILES[:-1] if tile <= wanted), default=_TILES[0])


def _tiles(program: ReductionProgram, options: ReductionOptions) -> int:
    """Return a reduction's number of tiles."""
    shape = program.geometry
    return shape.rows if shape.adjacent else shape.outer * -(-shape.inner // options.tile)


def _share_tiles(cores: int) -> Transformation:
    return Transformation(
        "share_tiles",
        "parallelism",
        f"Only one of {cores} cores has work. Tiles are independent: share them among OpenMP threads. Expect a speedup "
        "close to the number of cores, until memory bandwidth becomes the limit.",
        {"parallel": True},
        ("schedule",),
        gain=1.0 + 0.8 * (cores - 1),
    )


def _share_parts(cores: int) -> Transformation:
    return Transformation(
        "share_parts",
        "parallelism",
        f"There are too few tiles to keep {cores} cores evenly busy. Split every row into parts that threads fold "
        "independently, and merge the parts' states.",
        {"order": "passes", "parts": 2 * cores},
        ("parts",),
        gain=1.1,
    )


def _tile_at_a_time(passes: int) -> Transformation:
    return Transformation(
        "tile_at_a_time",
        "memory",
        "Every step reads the whole tensor from memory again. Run all steps on a tile before the next tile begins: "
        "later steps then find the tile in the cache.",
        {"order": "tiles", "parts": 1},
        ("tile",),
        gain=1.0 + 0.2 * passes,
        helps="memory",
    )
