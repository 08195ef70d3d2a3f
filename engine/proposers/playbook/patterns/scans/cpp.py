"""The C++ template for scans."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.patterns.scans.cpp_kernel import ScanOptions, scan_kernel
from engine.proposers.playbook.patterns.scans.program import ScanProgram, as_scan
from engine.proposers.playbook.transformations import cpp as shared


class CppScans(Template):
    """Scans in C++ with OpenMP and GCC's vector extensions."""

    name = "scans_cpp"
    pattern = "scans"
    language = "cpp"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        scan = as_scan(program)
        lanes = shared.usual_lanes(device)
        first = ScanOptions(lanes=lanes, parallel=device.cores > 1, tile=_tile(scan, device))
        plain = ScanOptions(tile=first.tile)
        how = (
            f"Scan {lanes} elements of a row together in {_steps(lanes)} vector steps, and carry the total in double "
            "precision."
            if scan.inner == 1
            else "Carry the totals of a tile of adjacent rows, so that loops run over adjacent elements."
        )
        opens = ("lanes",) if scan.inner == 1 else ("tile",)
        return [
            Start("vectors", f"{how} Share the rows among the threads.", Recipe(self.name, choices_of(first), opens)),
            Start(
                "plain",
                "Scan the elements one by one in double precision on one core.",
                Recipe(self.name, choices_of(plain)),
            ),
        ]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        scan, now = as_scan(program), options_of(ScanOptions, recipe.choices)
        found = []
        if now.lanes == 1 and scan.inner == 1 and scan.length >= 16:
            found.append(_vector_steps(shared.usual_lanes(device)))
        if not now.parallel and device.cores > 1 and scan.rows > 1:
            found.append(_share_rows(device.cores))
        if now.parallel and now.schedule == "static":
            found.append(shared.dynamic_schedule("rows", {"chunk": 4}, ("schedule", "chunk")))
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        scan, now = as_scan(program), options_of(ScanOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {}
        if scan.inner > 1:
            found["tile"] = (16, 64, 256, 1024)
        elif now.lanes > 1:
            found["lanes"] = (4, *shared.lanes_knob(device))
        if now.parallel:
            found |= {"schedule": ("static", "guided", "dynamic"), "chunk": (1, 4, 16)}
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        return scan_kernel(as_scan(program), options_of(ScanOptions, recipe.choices), spec)


def _tile(program: ScanProgram, device: DeviceFact) -> int:
    """Return the widest tile that still gives every core at least two tiles."""
    wanted = program.rows // (2 * max(1, device.cores))
    return max((tile for tile in (16, 64, 256, 1024) if tile <= wanted), default=16)


def _vector_steps(lanes: int) -> Transformation:
    return Transformation(
        "vector_steps",
        "latency",
        f"Each addition waits for the previous addition. Scan {lanes} elements together in {_steps(lanes)} vector "
        f"steps, so that only one addition per {lanes} elements waits.",
        {"lanes": lanes},
        ("lanes",),
        gain=1.5,
        helps="latency",
    )


def _steps(lanes: int) -> str:
    return {8: "three", 16: "four"}[lanes]


def _share_rows(cores: int) -> Transformation:
    return Transformation(
        "share_rows",
        "parallelism",
        f"Only one of {cores} cores has work. Rows are independent: share them among OpenMP threads.",
        {"parallel": True},
        ("schedule", "chunk"),
        gain=1.0 + 0.8 * (cores - 1),
    )
