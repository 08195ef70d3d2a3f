"""The pointwise family in C++: a plain starting point, moves and knobs."""

from __future__ import annotations

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_moves
from engine.proposers.playbook.cpp_math import POLYNOMIAL
from engine.proposers.playbook.cpp_options import PointwiseOptions, choices_of, pointwise_options
from engine.proposers.playbook.cpp_pointwise_file import pointwise_kernel
from engine.proposers.playbook.ir import PointwiseProgram, Program
from engine.proposers.playbook.rewrite import pointwise_reciprocals
from engine.proposers.playbook.template import Choice, First, Move, Recipe, Template

_EXPONENTIALS = frozenset({"exp", "expm1", "sigmoid", "tanh"})
_BLOCKS = (2048, 4096, 8192, 16384, 32768, 65536, 262144)


class CppPointwise(Template):
    """Pointwise chains in C++ with OpenMP and GCC's vector extensions."""

    name = "pointwise_cpp"
    family = "pointwise"
    language = "cpp"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        text = (
            "One loop over the elements that computes the whole chain and stores the result: no intermediate tensor is "
            "written to memory. Scalar and on one core, to be checked by reading."
        )
        return [First("fused_loop", text, Recipe(self.name, choices_of(PointwiseOptions())))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        chain, now = as_pointwise(program), pointwise_options(recipe.choices)
        ops = _ops(chain)
        found = []
        if now.lanes == 1 and chain.numel >= 8:
            found.append(cpp_moves.vectorise(" and ".join(sorted(ops & POLYNOMIAL)), {}))
        if not now.parallel and device.cores > 1 and chain.numel > _BLOCKS[0]:
            found.append(_share_elements(device.cores, now.lanes > 1))
        if now.parallel and now.schedule == "static":
            found.append(cpp_moves.dynamic_schedule("blocks of elements", {}, ("schedule", "block")))
        if now.divide == "divide" and pointwise_reciprocals(chain) != chain:
            found.append(cpp_moves.reciprocal("Take the reciprocal of the constant divisor beforehand"))
        if now.lanes > 1:
            found += _vector_moves(now, ops)
        knobs = self.knobs(program, recipe, device)
        return [*found, cpp_moves.tune(tuple(knobs))] if recipe.opened and len(knobs) > 1 else found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        chain, now = as_pointwise(program), pointwise_options(recipe.choices)
        found: dict[str, tuple[Choice, ...]] = {"prefetch": (0, 128, 256, 512, 1024, 2048)}
        if now.parallel:
            found |= {"schedule": ("static", "guided", "dynamic"), "block": _BLOCKS}
        if now.lanes > 1:
            found |= {"lanes": (8, 16), "unroll": (1, 2, 4, 8)}
        if now.math == "polynomial" and _ops(chain) & _EXPONENTIALS:
            found["exp_degree"] = (5, 6)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        chain, options = as_pointwise(program), pointwise_options(recipe.choices)
        if options.divide == "reciprocal":
            chain = pointwise_reciprocals(chain)
        return pointwise_kernel(chain, options, spec)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        exact = recipe.with_({"math": "libm", "divide": "divide"})
        return exact if exact.choices != recipe.choices else None


def as_pointwise(program: Program) -> PointwiseProgram:
    assert isinstance(program, PointwiseProgram), "the pointwise templates take pointwise programs"
    return program


def _ops(chain: PointwiseProgram) -> set[str]:
    return {chain.values[k].op for k in chain.order}


def _vector_moves(now: PointwiseOptions, ops: set[str]) -> list[Move]:
    found = []
    if now.stores == "cached":
        found.append(cpp_moves.streaming_stores({}))
    if now.prefetch == 0:
        found.append(cpp_moves.prefetch())
    if now.unroll == 1:
        found.append(cpp_moves.unroll_output())
    if now.lanes == 16:
        found.append(cpp_moves.narrower_vectors())
    if now.math == "polynomial" and now.exp_degree == 6 and ops & _EXPONENTIALS:
        found.append(cpp_moves.shorter_polynomial())
    return found


def _share_elements(cores: int, vectors: bool) -> Move:
    return Move(
        "share_elements",
        "parallelism",
        f"One core of {cores} works. Elements are independent: cut them into "
        "blocks and share those out over OpenMP threads. Expected: nearly as many times faster as there are cores, "
        "until memory is the limit.",
        {"parallel": True},
        ("schedule", "block") if vectors else (),
        gain=1.0 + 0.8 * (cores - 1),
    )
