"""CUDA structure ``split``: few long rows, each spread over many blocks, in three launches per group of rows.

1. ``partials``: every block folds a span of a row into a state in the workspace.
2. ``combine``: one block per row merges the row's states into its ``Row``.
3. ``apply``: every thread takes some columns, reads their weights once, and writes them in several rows.

With ``group_rows`` below ``rows`` the launches repeat for one group after the other, so that a group's data may
still be in L2 when ``apply`` reads it.
"""

from __future__ import annotations

from engine.proposers.playbook.cuda_rows_block import SHARED_MERGE
from engine.proposers.playbook.cuda_rows_code import RowCode
from engine.proposers.playbook.cuda_text import fill


def split_text(
    code: RowCode, *, threads: int, unroll: int, span_floats: int, group_rows: int, rows_per_block: int
) -> tuple[str, list[str]]:
    """Device code, and the body of ``launch``. ``span_floats``: what one block of ``partials`` folds, at least.

    The program must have exactly one stage.
    """
    columns = code.out_extras_by_column
    text = fill(
        """\
constexpr int threads = $threads, unroll = $unroll;
constexpr int span = $floats / width > threads ? $floats / width : threads;  // packs that a block folds
constexpr int spans = (packs + span - 1) / span;
constexpr int group_rows = rows < $group ? rows : $group, rows_per_block = $rpb;
$merge
// Rows first, first + 1, ...: grid (spans, rows of the group).
__global__ void __launch_bounds__(threads) partials(Tensors t, State0* states, long long first) {
    const long long r = first + blockIdx.y, base = r * cols;
    const Row row = begin_row(t, r);
    const int end = min(packs, (int(blockIdx.x) + 1) * span);
    State0 state = State0::empty();
    for (int pack = blockIdx.x * span + threadIdx.x; pack < end; pack += unroll * threads) {
        Held h[unroll];
        Extra0 x[unroll];
        int valid = 0;
#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const int at = pack + k * threads;
            if (at < end) {
                h[k] = load_held(t, base, at * width);
                x[k] = load_extra0(t, base, at * width);
                valid += width;
            }
        }
        Values0<unroll * width> values;
#pragma unroll
        for (int k = 0; k < unroll; ++k) evaluate0(values, k * width, pack + k * threads < end, h[k], x[k], row);
        state.push(values, valid);
    }
    __shared__ State0 shared[threads / 32];
    state = merge_block<State0, threads / 32>(state, shared);
    if (threadIdx.x == 0) states[r * spans + blockIdx.x] = state;
}
__global__ void __launch_bounds__(threads) combine(Tensors t, const State0* states, Row* found, long long first) {
    const long long r = first + blockIdx.x;
    State0 state = State0::empty();
    for (int k = threadIdx.x; k < spans; k += threads) state.merge(states[r * spans + k]);
    __shared__ State0 shared[threads / 32];
    state = merge_block<State0, threads / 32>(state, shared);
    Row row = begin_row(t, r);
    finish0(state, row);
    if (threadIdx.x == 0) {
        found[r] = row;
        write_row(t, r, row);
    }
}
// Grid (blocks of columns, blocks of rows_per_block rows).
__global__ void __launch_bounds__(threads) apply(Tensors t, const Row* found, long long first) {
    const int start = blockIdx.x * (unroll * threads) + threadIdx.x;
    const long long from = first + (long long)(blockIdx.y) * rows_per_block;
    const long long to = min(min(rows, first + group_rows), from + rows_per_block);
$weights    for (long long r = to - 1; r >= from; --r) {  // the last rows were read last: L2 may still have them
        const Row row = found[r];
        const long long base = r * cols;
        Held h[unroll];
$row_weights#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const int pack = start + k * threads;
            if (pack < packs) {
                h[k] = load_held(t, base, pack * width);
$load_row            }
        }
#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const int pack = start + k * threads;
            if (pack < packs) write(t, base, pack * width, h[k], x[k], row);
        }
    }
}
struct Workspace {
    Row found[rows];
    State0 states[rows * spans];
};
""",
        threads=threads,
        unroll=unroll,
        floats=span_floats,
        group=group_rows,
        rpb=rows_per_block,
        merge=SHARED_MERGE,
        weights=_WEIGHTS if columns else "",
        row_weights="" if columns else "        ExtraOut x[unroll];\n",
        load_row="" if columns else "                x[k] = load_extra_out(t, base, pack * width);\n",
    )
    return text, [
        "using namespace playbook;",
        "const Tensors t = {$tensors};",
        "Workspace* scratch = static_cast<Workspace*>(workspace);",
        "for (long long first = 0; first < playbook::rows; first += group_rows) {",
        "    const long long left = playbook::rows - first;",
        "    const unsigned count = unsigned(left < group_rows ? left : group_rows);",
        "    partials<<<dim3(spans, count), playbook::threads, 0, stream>>>(t, scratch->states, first);",
        "    combine<<<count, playbook::threads, 0, stream>>>(t, scratch->states, scratch->found, first);",
        "    const dim3 grid((packs + unroll * playbook::threads - 1) / (unroll * playbook::threads),",
        "                    (count + rows_per_block - 1) / rows_per_block);",
        "    if (writes_elements) apply<<<grid, playbook::threads, 0, stream>>>(t, scratch->found, first);",
        "}",
        "return int(cudaGetLastError());",
    ]


_WEIGHTS = """\
    ExtraOut x[unroll];
#pragma unroll
    for (int k = 0; k < unroll; ++k) {
        const int pack = start + k * threads;
        if (pack < packs) x[k] = load_extra_out(t, 0, pack * width);
    }
"""
