"""CUDA structures in which a row belongs to one warp, one block or one cluster of blocks.

``loop``: a block walks its row once per stage and once more to write, reading memory (or L2) each time.
``registers``: the row is read once and stays in the registers of a warp, a block or a thread-block cluster.
"""

from __future__ import annotations

from engine.proposers.playbook.cuda_rows_code import RowCode
from engine.proposers.playbook.cuda_text import fill
from engine.proposers.playbook.demands import demand

MOST_HELD = 256
"""Floats of a row that one thread may have to hold at other sizes than the searched one; more than the registers."""
SHARED_MERGE = """\
// Every thread gets the merged state. shared has one entry per warp and is used once between two barriers.
template <class S, int warps>
__device__ __forceinline__ S merge_block(S state, S* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    state = merge_warp(state);
    if (lane == 0) shared[warp] = state;
    __syncthreads();
    return merge_warp(lane < warps ? shared[lane] : S::empty());
}
"""
_TREE_MERGE = """\
// Every thread gets the merged state: a tree in shared memory, half the threads at each step.
template <class S, int count>
__device__ __forceinline__ S merge_tree(S state, S* shared) {
    shared[threadIdx.x] = state;
    __syncthreads();
    for (int half = count / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            state.merge(shared[threadIdx.x + half]);
            shared[threadIdx.x] = state;
        }
        __syncthreads();
    }
    return shared[0];
}
"""


def loop_text(code: RowCode, *, threads: int, unroll: int, tree: bool) -> tuple[str, list[str]]:
    """``loop``: device code, and the body of ``launch``."""
    stages = "".join(_loop_stage(k, tree) for k in range(len(code.stages)))
    text = fill(
        """\
constexpr int threads = $threads, unroll = $unroll;
$merge
__global__ void __launch_bounds__(threads) one_row(Tensors t) {
    const long long r = blockIdx.x, base = r * cols;
    Row row = begin_row(t, r);
$stages    int pack = threadIdx.x;
    for (; writes_elements && pack + (unroll - 1) * threads < packs; pack += unroll * threads) {
        Held h[unroll];
        ExtraOut x[unroll];
#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const int col = (pack + k * threads) * width;
            h[k] = load_held(t, base, col);
            x[k] = load_extra_out(t, base, col);
        }
#pragma unroll
        for (int k = 0; k < unroll; ++k) write(t, base, (pack + k * threads) * width, h[k], x[k], row);
    }
    for (; writes_elements && pack < packs; pack += threads) {
        const int col = pack * width;
        write(t, base, col, load_held(t, base, col), load_extra_out(t, base, col), row);
    }
    if (threadIdx.x == 0) write_row(t, r, row);
}
""",
        threads=threads,
        unroll=unroll,
        merge=_TREE_MERGE if tree else SHARED_MERGE,
        stages=stages,
    )
    return text, [
        "playbook::one_row<<<unsigned(playbook::rows), playbook::threads, 0, stream>>>({$tensors});",
        "return int(cudaGetLastError());",
    ]


def _loop_stage(stage: int, tree: bool) -> str:
    merge = f"merge_tree<State{stage}, threads>" if tree else f"merge_block<State{stage}, threads / 32>"
    return fill(
        """\
    {
        State$s state = State$s::empty();
        int pack = threadIdx.x;
        for (; pack + (unroll - 1) * threads < packs; pack += unroll * threads) {
            Held h[unroll];
            Extra$s x[unroll];
#pragma unroll
            for (int k = 0; k < unroll; ++k) {
                const int col = (pack + k * threads) * width;
                h[k] = load_held(t, base, col);
                x[k] = load_extra$s(t, base, col);
            }
            Values$s<unroll * width> values;
#pragma unroll
            for (int k = 0; k < unroll; ++k) evaluate$s(values, k * width, true, h[k], x[k], row);
            state.push(values, unroll * width);
        }
        for (; pack < packs; pack += threads) {
            const int col = pack * width;
            Values$s<width> values;
            evaluate$s(values, 0, true, load_held(t, base, col), load_extra$s(t, base, col), row);
            state.push(values, width);
        }
        __shared__ State$s shared[$shared];
        finish$s($merge(state, shared), row);
    }
""",
        s=stage,
        shared="threads" if tree else "threads / 32",
        merge=merge,
    )


CLUSTER = """\
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Address of the same shared variable in block rank of the cluster.
__device__ __forceinline__ unsigned peer_address(const void* shared, unsigned rank) {
    unsigned found;
    const unsigned own = unsigned(__cvta_generic_to_shared(shared));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(own), "r"(rank));
    return found;
}
"""
_PEERS = """\
template <class S>
__device__ __forceinline__ S load_peer(const S* shared, unsigned rank) {
    constexpr int words = sizeof(S) / 4;
    union Words { float at[words]; S state; __device__ Words() {} } found;
    const unsigned from = peer_address(shared, rank);
#pragma unroll
    for (int k = 0; k < words; ++k)
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(found.at[k]) : "r"(from + 4 * k));
    return found.state;
}
"""


def registers_text(code: RowCode, *, threads: int, cluster: int, warp_rows: bool, blocks: int) -> tuple[str, list[str]]:
    """``registers``: ``cluster`` blocks share a row, or each warp has its own (``warp_rows``)."""
    sharers = 32 if warp_rows else threads * cluster
    stages = "".join(_register_stage(k, warp_rows, cluster) for k in range(len(code.stages)))
    where = (
        "const long long r = blockIdx.x * (threads / 32LL) + threadIdx.x / 32;\n"
        "    if (r >= rows) return;\n    const int first = threadIdx.x % 32;"
        if warp_rows
        else "const long long r = blockIdx.x / cluster;\n"
        "    const int first = threadIdx.x + int(blockIdx.x % cluster) * threads;"
    )
    grid = (
        "(playbook::rows * 32 + playbook::threads - 1) / playbook::threads"
        if warp_rows
        else "playbook::rows * playbook::cluster"
    )
    text = fill(
        """\
constexpr int threads = $threads${cluster}, sharers = $sharers;
constexpr int keep = (packs + sharers - 1) / sharers;  // packs of a row in the registers of a thread
$fits
$merge
__global__ void ${dims}__launch_bounds__(threads, $blocks) one_row(Tensors t) {
    $where
    const long long base = r * cols;
    Row row = begin_row(t, r);
    Held h[keep];
    int valid = 0;
#pragma unroll
    for (int k = 0; k < keep; ++k) {
        const int pack = first + k * sharers;
        if (pack < packs) {
            h[k] = load_held(t, base, pack * width);
            valid += width;
        }
    }
$stages#pragma unroll
    for (int k = 0; writes_elements && k < keep; ++k) {
        const int pack = first + k * sharers;
        if (pack < packs) write(t, base, pack * width, h[k], load_extra_out(t, base, pack * width), row);
    }
    if (first == 0) write_row(t, r, row);
$leave}
""",
        threads=threads,
        cluster="" if warp_rows else f", cluster = {cluster}",
        sharers=sharers,
        fits=demand(
            f"keep * width * {max(1, len(code.held))} <= {MOST_HELD}",
            f"rows that fit the registers of {sharers} threads",
        ),
        blocks=blocks,
        merge="" if warp_rows else SHARED_MERGE + (CLUSTER + _PEERS if cluster > 1 else ""),
        dims=f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else "",
        where=where,
        stages=stages,
        leave="    cluster_wait();  // a peer may still read this block's shared memory\n" if cluster > 1 else "",
    )
    return text, [
        f"playbook::one_row<<<unsigned({grid}), playbook::threads, 0, stream>>>({{$tensors}});",
        "return int(cudaGetLastError());",
    ]


def _register_stage(stage: int, warp_rows: bool, cluster: int) -> str:
    if warp_rows:
        merge = "state = merge_warp(state);"
    elif cluster == 1:
        merge = (
            f"__shared__ State{stage} shared[threads / 32];\n"
            f"        state = merge_block<State{stage}, threads / 32>(state, shared);"
        )
    else:
        merge = fill(
            """\
__shared__ State$s shared[threads / 32], mine;
        state = merge_block<State$s, threads / 32>(state, shared);
        if (threadIdx.x == 0) mine = state;
        $before
        cluster_arrive();
        cluster_wait();
        const unsigned lane = threadIdx.x % 32;
        state = merge_warp(lane < cluster ? load_peer(&mine, lane) : State$s::empty());
        cluster_arrive();""",
            s=stage,
            before="" if stage == 0 else "cluster_wait();  // of the stage before",
        )
    return fill(
        """\
    {
        Values$s<keep * width> values;
#pragma unroll
        for (int k = 0; k < keep; ++k) {
            const int pack = first + k * sharers;
            const bool inside = pack < packs;
            Extra$s x = {};
            if (inside) x = load_extra$s(t, base, pack * width);
            evaluate$s(values, k * width, inside, h[k], x, row);
        }
        State$s state = State$s::empty();
        state.push(values, valid);
        $merge
        finish$s(state, row);
    }
""",
        s=stage,
        merge=merge,
    )
