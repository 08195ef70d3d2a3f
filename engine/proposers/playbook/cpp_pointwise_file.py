"""Writes the whole C++ file of a pointwise program: one loop over all elements, or over blocks shared by threads."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_math
from engine.proposers.playbook.cpp_access import Loaded, flat_element, pick_helper
from engine.proposers.playbook.cpp_expr import Namer, render
from engine.proposers.playbook.cpp_options import PointwiseOptions
from engine.proposers.playbook.cpp_text import SPREAD, STORE, banner, function, indent, omp_for, stream
from engine.proposers.playbook.demands import program_demands
from engine.proposers.playbook.ir import PointwiseProgram, needed
from engine.proposers.playbook.signature import launch_signature
from engine.proposers.playbook.sizes import text


def pointwise_kernel(program: PointwiseProgram, options: PointwiseOptions, spec: ProblemSpec) -> str:
    """The kernel source: helpers, the function ``chain`` over a range of elements, ``launch``."""
    roots = [store.value for store in program.stores]
    order = needed(program.values, roots)
    ops = {program.values[k].op for k in order}
    tensors = {program.values[k].tensor for k in order if program.values[k].op == "load"}
    stored = {store.tensor for store in program.stores}
    names = [tensor.name for tensor in spec.tensors if tensor.name in tensors | stored]
    function = _chain(program, options, names, stored, order)
    body = "\n".join(function)
    head = banner(f"Pointwise kernel for {spec.name}, searched at {program.numel} elements.", ops)
    demands = program_demands(program, order, spec)
    lines = [*head, "namespace {", "", *_constants(program, options, body), *demands, ""]
    if options.lanes > 1:
        lines += [cpp_math.PREAMBLE, _helpers(options, ops, body)]
    else:
        lines.append(cpp_math.scalar_helpers(ops))
    lines += [*function, "", "}  // namespace", ""]
    lines += [f"{launch_signature(spec, 'cpp', set(names))} {{", *indent([*_launch(options, names), "return 0;"]), "}"]
    return "\n".join(lines) + "\n"


def _constants(program: PointwiseProgram, options: PointwiseOptions, body: str) -> list[str]:
    lines = [f"constexpr long long kElements = {text(program.numel)};"]
    if options.lanes > 1:
        lines.append(f"constexpr int kLanes = {options.lanes};")
    if "kUnroll" in body:
        lines.append(f"constexpr int kUnroll = {options.unroll};")
    if options.parallel:
        lines.append(f"constexpr long long kBlock = {options.block};  // elements per piece of work")
    if "kPrefetch" in body:
        lines.append(f"constexpr long long kPrefetch = {options.prefetch};  // elements ahead of the loads")
    return lines


def _helpers(options: PointwiseOptions, ops: set[str], body: str) -> str:
    optional = (("store(", STORE), ("stream(", stream(options.lanes)), ("spread(", SPREAD))
    pieces = [words for call, words in optional if call in body]
    if "pick<" in body:
        pieces.append(pick_helper("true"))
    pieces.append(cpp_math.vector_helpers(ops, polynomials=options.math == "polynomial", degree=options.exp_degree))
    return "\n".join(pieces)


def _chain(
    program: PointwiseProgram, options: PointwiseOptions, names: list[str], stored: set[str], order: tuple[int, ...]
) -> list[str]:
    """The function over elements [begin, end); ``begin`` is a multiple of the lanes."""
    wide = options.lanes > 1
    loads: dict[int, Loaded] = {
        k: flat_element(value.tensor, value.access, program.numel, options.lanes)
        for k, value in enumerate(program.values)
        if value.op == "load" and k in order
    }
    namer = Namer(["i", "begin", "end", "width", "step", *names])
    leaves = {k: loaded.text for k, loaded in loads.items()}
    roots = [store.value for store in program.stores]
    statements, texts = render(program.values, roots, leaves, namer, wide=wide)
    for store in program.stores:
        result = texts[store.value]
        if not wide:
            statements.append(f"{store.tensor}[i] = {result};")
            continue
        if not _varies(program, store.value):
            result = f"spread(width, {result})"
        statements.append(f"{'stream' if options.stores == 'stream' else 'store'}({store.tensor} + i, {result});")
    whole = [program.values[k].tensor for k, loaded in loads.items() if program.values[k].access.count == program.numel]
    ahead = (
        [f"__builtin_prefetch({name} + i + kPrefetch);" for name in dict.fromkeys(whole)] if options.prefetch else []
    )
    parameters = [("float*" if name in stored else "const float*", name) for name in names]
    parameters += [("long long", "begin"), ("long long", "end")]
    loop = _wide_loop(statements, ahead, options.unroll) if wide else _plain_loop(statements, ahead)
    return function("Elements [begin, end) of the chain.", "void", "chain", parameters, loop)


def _varies(program: PointwiseProgram, value: int) -> bool:
    """Whether a value differs between elements, so that it is a vector in a vector loop."""
    return any(
        program.values[k].op == "load" and program.values[k].access.count > 1 for k in needed(program.values, (value,))
    )


def _plain_loop(statements: list[str], ahead: list[str]) -> list[str]:
    return ["for (long long i = begin; i < end; ++i) {", *indent([*ahead, *statements]), "}"]


def _wide_loop(statements: list[str], ahead: list[str], unroll: int) -> list[str]:
    lines = ["const auto step = [&](auto width, long long i) {", *indent(statements), "};", "long long i = begin;"]
    if unroll > 1:
        each = [line.replace(" + i +", " + i + k * kLanes +") for line in ahead]
        inner = [*each, "step(Wide{}, i + k * kLanes);"]
        lines += [
            "for (; i + kUnroll * kLanes <= end; i += kUnroll * kLanes) {",
            "#pragma GCC unroll 16",
            *indent(["for (int k = 0; k < kUnroll; ++k) {", *indent(inner), "}"]),
            "}",
        ]
        ahead = []
    lines += ["for (; i + kLanes <= end; i += kLanes) {", *indent([*ahead, "step(Wide{}, i);"]), "}"]
    return [*lines, "if constexpr (kElements % kLanes != 0) for (; i < end; ++i) step(One{}, i);"]


def _launch(options: PointwiseOptions, names: list[str]) -> list[str]:
    arguments = ", ".join(names)
    fence = ["stream_fence();"] if options.stores == "stream" and options.lanes > 1 else []
    if not options.parallel:
        return [f"chain({arguments}, 0, kElements);", *fence]
    loop = [
        "for (long long begin = 0; begin < kElements; begin += kBlock) {",
        "  const long long end = begin + kBlock < kElements ? begin + kBlock : kElements;",
        f"  chain({arguments}, begin, end);",
        "}",
    ]
    if not fence:
        return [f"#pragma omp parallel {omp_for(options.schedule, 0)}", *loop]
    share = f"#pragma omp {omp_for(options.schedule, 0)}"
    return ["#pragma omp parallel", "{", *indent([share, *loop, *fence]), "}"]
