"""The functions of an emitted C++ row kernel: one a pass over the row, and one that writes its outputs."""

from __future__ import annotations

from engine.proposers.playbook.cpp_expr import Namer, render
from engine.proposers.playbook.cpp_rows_code import IDENTITY, LOCALS, RowCode
from engine.proposers.playbook.cpp_text import function, indent

Parameters = list[tuple[str, str]]
RANGE: Parameters = [("long long", "r"), ("long long", "begin"), ("long long", "end")]
ROW: Parameters = [("const Row&", "row")]


def pass_function(code: RowCode, number: int, group: tuple[int, ...]) -> list[str]:
    """The function of one pass over a part of a row."""
    if code.in_pair(group):
        return fused_pass(code, number, group)
    reductions = code.program.reductions
    sources = [reductions[k].source for k in group]
    keep = code.kept is not None and number == len(code.passes)
    roots = [*sources, *([code.kept] if keep and code.kept is not None else [])]
    namer = Namer([*LOCALS, *code.names()])
    leaves: dict[int, str] = {}
    before = code.prologue(roots, leaves, namer)
    names = [(namer.name(code.fields[k]), reductions[k].op, reductions[k].source) for k in group]
    body = code.accumulate(sources, names, leaves, namer, keep)
    accumulators = [(name, op) for name, op, _ in names]
    prefetch = code.prefetch(roots, number == 1)
    part = code.has_part(group)
    if code.wide and code.program.cols > code.options.block and any(op == "sum" for _, op in accumulators):
        lines = [f"{'double' if op == 'sum' else 'float'} {name}_all = {IDENTITY[op].replace('0.0f', '0.0')};"
                 for name, op in accumulators]  # fmt: skip
        inner = code.loop(body, accumulators=accumulators, prefetch=prefetch, unroll=1, start="at", stop="stop")
        inner += [f"{name}_all += {name};" if op == "sum" else f"{name}_all = {op}_of({name}_all, {name});"
                  for name, op in accumulators]  # fmt: skip
        lines += code.blocks(inner)
        results = [f"{name}_all" for name, _ in accumulators]
    else:
        lines = code.loop(body, accumulators=accumulators, prefetch=prefetch, unroll=1, start="begin", stop="end")
        results = [name for name, _ in accumulators]
    if part:
        lines.append(f"return {{{', '.join(results)}}};")
    else:
        lines += [f"row.{code.fields[k]} = static_cast<float>({text});" if op == "sum" else
                  f"row.{code.fields[k]} = {text};"
                  for k, (_, op), text in zip(group, accumulators, results, strict=True)]  # fmt: skip
    what = ", ".join(f"{code.fields[k]} ({reductions[k].op})" for k in group)
    parameters = [*code.parameters(roots, kept=keep), *RANGE, *(ROW if part else [("Row&", "row")])]
    comment = f"Pass {number} over columns [begin, end) of row r: {what}."
    return function(comment, f"Part{number}" if part else "void", f"pass{number}", parameters, [*before, *lines])


def fused_pass(code: RowCode, number: int, group: tuple[int, ...]) -> list[str]:
    pair = code.pair
    assert pair is not None
    deviation = code.values[code.program.reductions[pair.second].source].args[0]
    reductions = code.program.reductions
    roots = [pair.source, reductions[pair.second].source]
    namer = Namer([*LOCALS, "mean", *code.names()])
    softmax = pair.kind == "online_softmax"
    leaves: dict[int, str] = {}
    for k, value in enumerate(code.values):
        if softmax and value.op == "reduced" and value.reduction == pair.first:
            leaves[k] = "part.highest"
        elif not softmax and k == pair.mean:
            leaves[k] = "mean"
    before = code.prologue(roots, leaves, namer)
    name, op = ("highest", "max") if softmax else ("total", "sum")
    first = code.accumulate([pair.source], [(name, op, pair.source)], leaves, Namer(namer.taken), False)
    inner = [f"Part{number} part;", "{"]
    one = code.loop(first, accumulators=[(name, op)], prefetch=code.prefetch(roots, number == 1), unroll=1,
                     start="at", stop="stop")  # fmt: skip
    one.append("part.highest = highest;" if softmax else "part.mean = total / static_cast<double>(stop - at);")
    inner += [*indent(one), "}"]
    if softmax:
        inner.append("if (part.highest == -INFINITY) continue;  // adds nothing, and inf - inf is NaN")
        sums = [("total", "sum", reductions[pair.second].source)]
    else:
        inner.append("const float mean = static_cast<float>(part.mean);")
        sums = [("squares", "sum", reductions[pair.second].source), ("rest", "sum", deviation)]
    second = code.accumulate([source for _, _, source in sums], sums, leaves, Namer(namer.taken), False)
    two = code.loop(second, accumulators=[(name, "sum") for name, _, _ in sums], prefetch=None, unroll=1,
                     start="at", stop="stop")  # fmt: skip
    if softmax:
        two.append("part.total = total;")
    else:
        two += ["part.count = static_cast<double>(stop - at);",
                "part.mean = mean + rest / part.count;",
                "part.squares = squares - rest * rest / part.count;"]  # fmt: skip
    inner += ["{", *indent(two), "}", "merge(all, part);"]
    what = "running maximum and sum" if softmax else "moments"
    return function(
        f"Pass {number} over columns [begin, end) of row r: {what}, block by block in the cache.",
        f"Part{number}",
        f"pass{number}",
        [*code.parameters(roots), *RANGE, *ROW],
        [*before, f"Part{number} all;", *code.blocks(inner), "return all;"],
    )


def part_struct(code: RowCode, number: int, group: tuple[int, ...]) -> list[str]:
    """The struct of a pass's partial result, how two of them merge, and what the row keeps of it."""
    reductions = code.program.reductions
    name = f"Part{number}"
    if not code.in_pair(group):
        fields = [f"{'double' if reductions[k].op == 'sum' else 'float'} {code.fields[k]};" for k in group]
        merge = [f"into.{f} += part.{f};" if reductions[k].op == "sum" else
                 f"into.{f} = {reductions[k].op}_of(into.{f}, part.{f});"
                 for k, f in ((k, code.fields[k]) for k in group)]  # fmt: skip
        close = [f"row.{code.fields[k]} = " + (f"static_cast<float>(part.{code.fields[k]});"
                 if reductions[k].op == "sum" else f"part.{code.fields[k]};") for k in group]  # fmt: skip
    elif code.pair is not None and code.pair.kind == "online_softmax":
        fields = ["float highest = -INFINITY;", "double total = 0.0;  // of exp(x - highest)"]
        merge = ["const float highest = max_of(into.highest, part.highest);",
                 "if (highest == -INFINITY) return;",
                 "into.total = into.total * std::exp(static_cast<double>(into.highest - highest)) +",
                 "             part.total * std::exp(static_cast<double>(part.highest - highest));",
                 "into.highest = highest;"]  # fmt: skip
        close = [f"row.{code.fields[code.pair.first]} = part.highest;",
                 f"row.{code.fields[code.pair.second]} = static_cast<float>(part.total);"]  # fmt: skip
    else:
        assert code.pair is not None
        pair = code.pair
        fields = ["double count = 0.0;", "double mean = 0.0;", "double squares = 0.0;  // of x - mean"]
        merge = ["if (part.count == 0.0) return;",
                 "const double count = into.count + part.count;",
                 "const double gap = part.mean - into.mean;",
                 "into.mean += gap * part.count / count;",
                 "into.squares += part.squares + gap * gap * into.count * part.count / count;",
                 "into.count = count;"]  # fmt: skip
        _, texts = render(code.values, [pair.mean], code.row_leaves(range(len(code.values))), Namer(), wide=False)
        close = [f"row.{code.fields[pair.first]} = static_cast<float>(part.mean * kCols);",
                 f"const float mean = {texts[pair.mean]};",
                 "const double lost = part.mean - mean;  // to rounding",
                 "const double squares = part.squares + kCols * lost * lost;  // about the rounded mean",
                 f"row.{code.fields[pair.second]} = static_cast<float>(squares);"]  # fmt: skip
        if pair.correction >= 0:
            close.append(f"row.{code.fields[pair.correction]} = static_cast<float>(lost * kCols);")
    note = "// Chan's formula for the moments of two parts." if fields[0].startswith("double count") else ""
    return [
        f"struct {name} {{", *indent(fields), "};",
        *([note] if note else []),
        f"inline void merge({name}& into, const {name}& part) {{", *indent(merge), "}",
        f"inline void close(const {name}& part, Row& row) {{", *indent(close), "}",
    ]  # fmt: skip


def finish_function(code: RowCode) -> list[str]:
    """The function that writes the outputs of a part of a row."""
    stores = code.program.element_stores
    if not stores:
        return []
    roots = [store.value for store in stores]
    namer = Namer([*LOCALS, *code.names()])
    leaves: dict[int, str] = {}
    if code.kept is not None:
        leaves[code.kept] = "load(width, kept + c)" if code.wide else "kept[c]"
    before = code.prologue(roots, leaves, namer)
    before += [f"float* {s.tensor}_row = {s.tensor} + r * kCols;" for s in stores]
    body, texts = render(code.values, roots, leaves, namer, wide=code.wide)
    stream = code.options.stores == "stream"
    for store in stores:
        target = f"{store.tensor}_row"
        text = texts[store.value]
        if not code.wide:
            body.append(f"{target}[c] = {text};")
        else:
            if code.program.per_row[store.value]:
                text = f"spread(width, {text})"
            body.append(f"{'stream' if stream else 'store'}({target} + c, {text});")
    align = f"{stores[0].tensor}_row" if stream and code.wide else None
    backward = code.options.backward
    lines = code.loop(body, accumulators=[], prefetch=None, unroll=code.options.unroll,
                      start="at" if backward else "begin", stop="stop" if backward else "end", align=align)  # fmt: skip
    if backward:
        lines = ["// Backwards: the end of the row is what the caches still hold.",
                 "for (long long at = begin + (end - begin - 1) / kBlock * kBlock; at >= begin; at -= kBlock) {",
                 *indent(["const long long stop = at + kBlock < end ? at + kBlock : end;", *lines]), "}"]  # fmt: skip
    parameters = [*finish_parameters(code), *RANGE, *ROW]
    return function("Writes columns [begin, end) of row r.", "void", "finish", parameters, [*before, *lines])


def finish_parameters(code: RowCode) -> Parameters:
    """Tensors that ``finish`` needs; a kept value comes last."""
    stores = code.program.element_stores
    given = () if code.kept is None else (code.kept,)
    return code.parameters(
        [s.value for s in stores], given=given, kept=code.kept is not None, stores=[s.tensor for s in stores]
    )
