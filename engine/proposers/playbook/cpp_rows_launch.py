"""``launch`` of an emitted C++ row kernel: how rows, passes and threads are nested."""

from __future__ import annotations

from engine.proposers.playbook.cpp_expr import Namer, render
from engine.proposers.playbook.cpp_rows_code import LOCALS, Group, RowCode
from engine.proposers.playbook.cpp_rows_passes import finish_parameters
from engine.proposers.playbook.cpp_text import indent, omp_for


def launch_body(code: RowCode) -> list[str]:
    if code.options.order == "passes":
        return by_passes(code)
    return by_columns(code) if code.columns else by_rows(code)


def row_stores(code: RowCode) -> list[str]:
    """Statements in ``launch`` that write one number a row."""
    stores = code.program.row_stores
    roots = [store.value for store in stores]
    inside = code.inside(roots)
    lines, texts = render(code.values, roots, code.row_leaves(inside), Namer([*LOCALS, *code.names()]),
                          wide=False, local="float")  # fmt: skip
    return lines + [f"{store.tensor}[r] = {texts[store.value]};" for store in stores]


def pass_call(code: RowCode, number: int, group: Group, begin: str, end: str) -> str:
    reductions = code.program.reductions
    keep = code.kept is not None and number == len(code.passes)
    roots = [reductions[k].source for k in group] + ([code.kept] if keep and code.kept is not None else [])
    return f"pass{number}({arguments(code, code.parameters(roots, kept=keep))}, r, {begin}, {end}, row)"


def arguments(code: RowCode, parameters: list[tuple[str, str]]) -> str:
    """What a function with ``parameters`` is called with."""
    return ", ".join(kept_pointer(code) if name == "kept" else name for _, name in parameters)


def kept_pointer(code: RowCode) -> str:
    if code.options.reuse == "buffer":
        return "kept"
    return f"{code.program.element_stores[0].tensor} + r * kCols"


def finish_call(code: RowCode, begin: str, end: str) -> str:
    return f"finish({arguments(code, finish_parameters(code))}, r, {begin}, {end}, row)"


def by_rows(code: RowCode) -> list[str]:
    body = ["Row row;" if code.passes else "const Row row{};"]
    for number, group in enumerate(code.passes, 1):
        call = pass_call(code, number, group, "0", "kCols")
        body.append(f"close({call}, row);" if code.has_part(group) else f"{call};")
    if code.program.element_stores:
        body.append(f"{finish_call(code, '0', 'kCols')};")
    body += row_stores(code)
    loop = ["for (long long r = 0; r < kRows; ++r) {", *indent(body), "}"]
    buffer = ["alignas(64) float kept[kCols];"] if code.kept is not None and code.options.reuse == "buffer" else []
    fence = ["stream_fence();"] if code.options.stores == "stream" else []
    if code.options.parallel == "none":
        return [*buffer, *loop, *fence]
    worksharing = omp_for(code.options.schedule, code.options.chunk)
    if not buffer and not fence:
        return [f"#pragma omp parallel {worksharing}", *loop]
    return ["#pragma omp parallel", "{", *indent([*buffer, f"#pragma omp {worksharing}", *loop, *fence]), "}"]


def by_passes(code: RowCode) -> list[str]:
    """Each pass over all rows before the next; the rows' results wait in the workspace."""
    lines = ["Row* rows = static_cast<Row*>(workspace);"]
    worksharing = omp_for(code.options.schedule, code.options.chunk)
    pragma = [f"#pragma omp parallel {worksharing}"] if code.options.parallel == "rows" else []
    steps = [
        f"close({call}, row);" if code.has_part(group) else f"{call};"
        for number, group in enumerate(code.passes, 1)
        for call in [pass_call(code, number, group, "0", "kCols")]
    ]
    for step in steps:
        lines += [*pragma, "for (long long r = 0; r < kRows; ++r) {", *indent(["Row& row = rows[r];", step]), "}"]
    last = [f"{finish_call(code, '0', 'kCols')};"] if code.program.element_stores else []
    fence = ["stream_fence();"] if code.options.stores == "stream" else []
    last = ["const Row& row = rows[r];", *last, *fence, *row_stores(code)]
    return [*lines, *pragma, "for (long long r = 0; r < kRows; ++r) {", *indent(last), "}"]


def by_columns(code: RowCode) -> list[str]:
    body = ["Row row;"]
    for number, group in enumerate(code.passes, 1):
        call = pass_call(code, number, group, "part_begin(p)", "part_begin(p + 1)")
        body += ["#pragma omp for schedule(static)",
                 f"for (int p = 0; p < kParts; ++p) parts{number}[p] = {call};",
                 f"Part{number} all{number} = parts{number}[0];",
                 f"for (int p = 1; p < kParts; ++p) merge(all{number}, parts{number}[p]);",
                 f"close(all{number}, row);"]  # fmt: skip
    if code.program.element_stores:
        finish = finish_call(code, "part_begin(p)", "part_begin(p + 1)")
        body += ["#pragma omp for schedule(static)", f"for (int p = 0; p < kParts; ++p) {finish};"]
    else:
        body.append("#pragma omp barrier")
    if code.program.row_stores:
        body += ["#pragma omp master", "{", *indent(row_stores(code)), "}"]
    shared = [f"Part{number} parts{number}[kParts];" for number in range(1, len(code.passes) + 1)]
    fence = ["stream_fence();"] if code.options.stores == "stream" else []
    loop = ["for (long long r = 0; r < kRows; ++r) {", *indent(body), "}"]
    return [*shared, "#pragma omp parallel", "{", *indent([*loop, *fence]), "}"]
