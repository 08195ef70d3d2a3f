"""Writes the whole C++ file of a row program."""

from __future__ import annotations

from engine.problem.spec import ProblemSpec
from engine.proposers.playbook import cpp_math
from engine.proposers.playbook.cpp_access import pick_helper
from engine.proposers.playbook.cpp_options import RowOptions
from engine.proposers.playbook.cpp_rows_code import MAX_BUFFER_COLS, RowCode
from engine.proposers.playbook.cpp_rows_launch import launch_body
from engine.proposers.playbook.cpp_rows_passes import finish_function, part_struct, pass_function
from engine.proposers.playbook.cpp_text import SPREAD, STORE, banner, indent, stream
from engine.proposers.playbook.demands import demand, program_demands
from engine.proposers.playbook.ir import RowProgram
from engine.proposers.playbook.signature import launch_signature
from engine.proposers.playbook.sizes import text


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
    program = code.program
    head = banner(f"Row kernel for {code.spec.name}, searched at {program.rows} rows of {program.cols}.", ops)
    lines = [*head, "namespace {", "", *constants(code, functions), *demands(code), ""]
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


def used_values(code: RowCode) -> list[int]:
    """Positions of all values that the kernel computes with, in order."""
    return code.inside([r.source for r in code.program.reductions] + [s.value for s in code.program.stores])


def used(code: RowCode) -> set[str]:
    return {code.values[k].tensor for k in used_values(code) if code.values[k].op == "load"} | {
        store.tensor for store in code.program.stores
    }


def constants(code: RowCode, functions: list[str]) -> list[str]:
    options, body = code.options, "\n".join(functions)
    rows, cols = code.program.rows, code.program.cols
    lines = [f"constexpr long long kRows = {text(rows)};", f"constexpr long long kCols = {text(cols)};"]
    if code.wide:
        lines.append(f"constexpr int kLanes = {options.lanes};")
    if "kTail" in body:
        lines.append("constexpr bool kTail = kCols % kLanes != 0;  // rows end in less than a vector")
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


def demands(code: RowCode) -> list[str]:
    """What must hold at other sizes for the kernel to be right there."""
    lines = program_demands(code.program, used_values(code), code.spec)
    if code.kept is not None and code.options.reuse == "buffer":
        lines.append(demand(f"kCols <= {MAX_BUFFER_COLS}", f"rows of at most {MAX_BUFFER_COLS} elements"))
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
    optional = (("store(", STORE), ("stream(", stream(options.lanes)), ("spread(", SPREAD))
    pieces = [words for call, words in (*optional, ("add_lanes(", ADD_LANES)) if call in body]
    if "pick<" in body:
        pieces.append(pick_helper("kCols % kLanes == 0"))
    pieces.append(cpp_math.vector_helpers(ops, polynomials=options.math == "polynomial", degree=options.exp_degree))
    pieces += [FOLD_LANES.format(op=op) for op in ("max", "min") if f"{op}_lanes(" in body]
    return "\n".join(pieces)
