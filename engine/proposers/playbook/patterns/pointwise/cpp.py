"""The C++ template for pointwise chains."""

from __future__ import annotations

from engine.devices.fact import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.base import Choice, Program, Recipe, Start, Template, Transformation
from engine.proposers.playbook.codegen.cpp_math import EXPONENTIALS, POLYNOMIAL
from engine.proposers.playbook.codegen.cpp_options import choices_of, options_of
from engine.proposers.playbook.ir.program import PointwiseProgram, as_pointwise
from engine.proposers.playbook.ir.rewrite import pointwise_reciprocals
from engine.proposers.playbook.patterns.pointwise.cpp_kernel import PointwiseOptions, pointwise_kernel
from engine.proposers.playbook.transformations import cpp as shared

_BLOCKS = (2048, 4096, 8192, 16384, 32768, 65536, 262144)


class CppPointwise(Template):
    """Pointwise chains in C++ with OpenMP and GCC's vector extensions."""

    name = "pointwise_cpp"
    pattern = "pointwise"
    language = "cpp"

    def starts(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[Start]:
        text = (
            "Loop once over the elements, compute the whole chain and store the result, so that no intermediate "
            "tensor goes to memory. The code is scalar, runs on one core, and is easy to check by reading."
        )
        return [Start("fused_loop", text, Recipe(self.name, choices_of(PointwiseOptions())))]

    def transformations(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Transformation]:
        chain, now = as_pointwise(program), options_of(PointwiseOptions, recipe.choices)
        ops = _ops(chain)
        found = []
        if now.lanes == 1 and chain.numel >= 8:
            found.append(shared.vectorize(" and ".join(sorted(ops & POLYNOMIAL)), {}, device))
        if not now.parallel and device.cores > 1 and chain.numel > _BLOCKS[0]:
            found.append(_share_elements(device.cores, now.lanes > 1))
        if now.parallel and now.schedule == "static":
            found.append(shared.dynamic_schedule("blocks of elements", {}, ("schedule", "block")))
        if now.divide == "divide" and pointwise_reciprocals(chain) != chain:
            found.append(shared.reciprocal("Compute the reciprocal of the constant divisor in advance"))
        if now.lanes > 1:
            found += _vector_transformations(now, ops)
        knobs = self.knobs(program, recipe, device)
        return [*found, shared.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        chain, now = as_pointwise(program), options_of(PointwiseOptions, recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"prefetch": (0, 128, 256, 512, 1024, 2048)}
        if now.parallel:
            found |= {"schedule": ("static", "guided", "dynamic"), "block": _BLOCKS}
        if now.lanes > 1:
            found |= {"lanes": shared.lanes_knob(device), "unroll": (1, 2, 4, 8)}
        if now.math == "polynomial" and _ops(chain) & EXPONENTIALS:
            found["exp_degree"] = (5, 6)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        chain, options = as_pointwise(program), options_of(PointwiseOptions, recipe.choices)
        if options.divide == "reciprocal":
            chain = pointwise_reciprocals(chain)
        return pointwise_kernel(chain, options, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm", "divide": "divide"})
        return exact if exact.choices != recipe.choices else None


def _ops(chain: PointwiseProgram) -> set[str]:
    return {chain.values[k].op for k in chain.order}


def _vector_transformations(now: PointwiseOptions, ops: set[str]) -> list[Transformation]:
    found = []
    if now.stores == "cached":
        found.append(shared.streaming_stores({}))
    if now.prefetch == 0:
        found.append(shared.prefetch())
    if now.unroll == 1:
        found.append(shared.unroll_output())
    if now.lanes == 16:
        found.append(shared.narrower_vectors())
    if now.math == "polynomial" and now.exp_degree == 6 and ops & EXPONENTIALS:
        found.append(shared.shorter_polynomial())
    return found


def _share_elements(cores: int, vectors: bool) -> Transformation:
    return Transformation(
        "share_elements",
        "parallelism",
        f"Only one of {cores} cores has work. Elements are independent: divide the elements into blocks, and share the "
        "blocks among OpenMP threads. Expect a speedup close to the number of cores, until memory bandwidth becomes "
        "the limit.",
        {"parallel": True},
        ("schedule", "block") if vectors else (),
        gain=1.0 + 0.8 * (cores - 1),
    )
