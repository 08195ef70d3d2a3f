"""Writes the whole C++ file of a row program."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_math
from engine.proposers.playbook.cpp_access import GATHER
from engine.proposers.playbook.cpp_options import RowOptions
from engine.proposers.playbook.cpp_rows_code import RowCode
from engine.proposers.playbook.cpp_rows_launch import launch_body
from engine.proposers.playbook.cpp_rows_passes import finish_function, part_struct, pass_function
from engine.proposers.playbook.cpp_text import SPREAD, STORE, banner, indent, stream
from engine.proposers.playbook.ir import RowProgram
from engine.proposers.playbook.signature import launch_signature


def row_kernel(program: RowProgram, options: RowOptions, spec: ProblemSpec) -> str:
    """The kernel source: helpers, a function for each pass, ``launch``."""
    code = RowCode(program, options, spec)
    functions: list[str] = []
    for number, group in enumerate(code.passes, 1):
        if code.has_part(group):
            functions += [*part_struct(code, number, group), ""]
        functions += [*pass_function(code, number, group), ""]
    finish = finish_function(code)
    functions += [*finish, ""] if finish else []
    ops = {value.op for value in code.values} | {r.op for r in code.program.reductions if r.op != "sum"}
    if code.pair is not None and code.pair.kind == "online_softmax":
        ops.add("max")
    head = banner(f"Row kernel for {code.spec.name}: {code.program.rows} rows of {code.program.cols}.", ops)
    lines = [*head, "namespace {", "", *constants(code, functions), ""]
    if code.wide:
        lines += [cpp_math.PREAMBLE, helpers(code, ops, functions)]
    else:
        lines += [cpp_math.scalar_helpers(ops)]
    lines += ["// What the passes leave of one row.", "struct Row {",
              *indent([f"float {field};" for field in code.fields] or ["char unused;"]), "};", ""]  # fmt: skip
    lines += [*functions, "}  // namespace", ""]
    by_passes = code.options.order == "passes"
    if by_passes:
        lines += ['extern "C" size_t workspace_bytes(void) { return kRows * sizeof(Row); }', ""]
    names = used(code) | ({"workspace"} if by_passes else set())
    lines += [f"{launch_signature(code.spec, 'cpp', names)} {{", *indent([*launch_body(code), "return 0;"]), "}"]
    return "\n".join(lines) + "\n"


def used(code: RowCode) -> set[str]:
    roots = [r.source for r in code.program.reductions] + [s.value for s in code.program.stores]
    inside = code.inside(roots)
    return {code.values[k].tensor for k in inside if code.values[k].op == "load"} | {
        store.tensor for store in code.program.stores
    }


def constants(code: RowCode, functions: list[str]) -> list[str]:
    options, body = code.options, "\n".join(functions)
    lines = [f"constexpr long long kRows = {code.program.rows};", f"constexpr long long kCols = {code.program.cols};"]
    if code.wide:
        lines.append(f"constexpr int kLanes = {options.lanes};")
    if "kAccumulators" in body:
        lines.append(f"constexpr int kAccumulators = {options.accumulators};  // independent chains of additions")
    if "kUnroll" in body:
        lines.append(f"constexpr int kUnroll = {options.unroll};")
    if "kBlock" in body:
        lines.append(f"constexpr long long kBlock = {options.block};  // columns per block")
    if "kPrefetch" in body:
        lines.append(f"constexpr long long kPrefetch = {options.prefetch};  // elements ahead of the loads")
    if code.columns:
        lines += [f"constexpr int kParts = {options.parts};  // of a row, shared out over the threads",
                  f"constexpr long long kPart = (kCols + kParts - 1) / kParts + {options.lanes - 1};",
                  "",
                  "// The first column of part p: parts start at whole vectors.",
                  "inline long long part_begin(int p) {",
                  f"  const long long begin = p * (kPart / {options.lanes} * {options.lanes});",
                  "  return begin < kCols ? begin : kCols;",
                  "}"]  # fmt: skip
    return lines


ADD_LANES = """\
// Sum over all lanes of n vectors.
template <int n>
inline double add_lanes(const vec (&lanes)[n]) {
  vec total = lanes[0];
  for (int k = 1; k < n; ++k) total += lanes[k];
  double sum = 0.0;
  for (int k = 0; k < kLanes; ++k) sum += static_cast<double>(total[k]);
  return sum;
}
"""
FOLD_LANES = """\
template <int n>
inline float {op}_lanes(const vec (&lanes)[n]) {{
  vec all = lanes[0];
  for (int k = 1; k < n; ++k) all = {op}_of(all, lanes[k]);
  float result = all[0];
  for (int k = 1; k < kLanes; ++k) result = {op}_of(result, all[k]);
  return result;
}}
"""


def helpers(code: RowCode, ops: set[str], functions: list[str]) -> str:
    """What the functions call, in the order that C++ needs."""
    body = "\n".join(functions)
    options = code.options
    optional = (("store(", STORE), ("stream(", stream(options.lanes)), ("spread(", SPREAD), ("gather(", GATHER))
    pieces = [text for call, text in (*optional, ("add_lanes(", ADD_LANES)) if call in body]
    pieces.append(cpp_math.vector_helpers(ops, polynomials=options.math == "polynomial", degree=options.exp_degree))
    pieces += [FOLD_LANES.format(op=op) for op in ("max", "min") if f"{op}_lanes(" in body]
    return "\n".join(pieces)
