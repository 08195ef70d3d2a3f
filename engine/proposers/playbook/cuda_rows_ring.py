"""CUDA structure ``ring``: persistent blocks that hold their part of a row in shared memory, read once (sm_90).

A producer warp copies pieces of row after row into a ring of slots in shared memory (bulk asynchronous copies that
complete on mbarriers); consumer warps fold a row's pieces as they land, exchange states with the other blocks of
their group, write the row out of shared memory and free the slots. While a group waits for its exchange, the copies
of the next row are in flight. A group is a thread-block cluster (exchange through distributed shared memory) or, with
``cluster`` 0, the whole grid (exchange through the workspace; launched cooperatively, so that all blocks are
resident).
"""

from __future__ import annotations

import math

from msgspec import Struct

from engine.proposers.playbook.cuda_rows_block import CLUSTER
from engine.proposers.playbook.cuda_rows_code import RowCode
from engine.proposers.playbook.cuda_text import fill
from engine.proposers.playbook.demands import demand

SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor on sm_90; a block gets 227 KiB at most, and each block costs 1 KiB."""
RESERVED_BYTES = 4096
"""What barriers, states and the system take of a block's share."""


class RingPlan(Struct, frozen=True):
    """How a row is laid over the ring. ``span``, ``piece``: packs; ``keep``: pieces of a row whose weights stay in
    registers from row to row. ``slot_bytes``, ``keep_wanted``: what was asked for."""

    group: int
    span: int
    piece: int
    pieces: int
    slots: int
    keep: int
    slot_bytes: int
    keep_wanted: int


def plan_ring(code: RowCode, *, group: int, slot_bytes: int, keep: int, blocks: int) -> RingPlan | None:
    """The layout for ``blocks`` blocks per multiprocessor.

    None where a block's part of a row does not fit its shared memory, or rows are no whole packs of 16 bytes.
    """
    if not code.held or code.width != 4 or len(code.stages) < 1:
        return None
    packs = code.program.cols // 4
    span = -(-packs // group)
    pieces = max(1, -(-span * 16 // slot_bytes))
    piece = 8 * math.ceil(math.ceil(span / pieces) / 8)  # a multiple of 128 bytes
    pieces = -(-span // piece)
    slots = (SHARED_BYTES // blocks - RESERVED_BYTES) // (piece * 16 * len(code.held))
    if slots < pieces:
        return None
    return RingPlan(group, span, piece, pieces, min(slots, 3 * pieces, 64), min(keep, pieces), slot_bytes, keep)


def ring_text(
    code: RowCode, *, threads: int, cluster: int, blocks: int, sms: int, plan: RingPlan
) -> tuple[str, list[str]]:
    """Device code, and the body of ``launch``. ``sms``: multiprocessors of the device, ``blocks`` blocks on each."""
    groups = max(1, sms * blocks // plan.group)
    text = fill(
        """\
constexpr int least(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }
constexpr int threads = $threads;  // consumers; one more warp produces
constexpr int group = $group, grid = (rows < $groups ? rows : $groups) * group;
// In packs: what a block has of a row, and the pieces of a multiple of 128 bytes that it is copied in.
constexpr int span = (packs + group - 1) / group, most_pieces = (span * 16 + $slot - 1) / $slot;
constexpr int piece = ((span + most_pieces - 1) / most_pieces + 7) / 8 * 8, pieces = (span + piece - 1) / piece;
constexpr int batch = (piece + threads - 1) / threads, slot_bytes = piece * 16 * $held;
constexpr int room = ($shared_bytes / $blocks - $reserved) / slot_bytes;  // slots that fit
constexpr int slots = least(room, 3 * pieces, 64);$keep
$demands
$primitives
$exchange
struct Shared {
    unsigned long long full[slots], empty[slots];
$shared};
constexpr int shared_bytes = slots * slot_bytes + int(sizeof(Shared));

// Position in the ring: the slot, and the parity of the round.
struct Cursor {
    int slot;
    unsigned round;
    __device__ __forceinline__ void advance() {
        if (++slot == slots) {
            slot = 0;
            round ^= 1;
        }
    }
};
__device__ __forceinline__ Held read_slot(const char* slot, int at) {
    Held h;
$read    return h;
}

// The weights of a piece, requested before they are needed.
__device__ __forceinline__ void load_ahead(ExtraOut (&ahead)[batch], const Tensors& t, long long base, int begin,
                                           int mine, int k) {
#pragma unroll
    for (int b = 0; writes_elements && b < batch; ++b) {
        const int at = threadIdx.x + b * threads;
        if (at < min(piece, mine - k * piece)) ahead[b] = load_extra_out(t, base, (begin + k * piece + at) * width);
    }
}

__global__ void ${dims}__launch_bounds__(threads + 32, $blocks) stream_rows(Tensors t$workspace_argument) {
    extern __shared__ __align__(128) char ring[];
    Shared& shared = *reinterpret_cast<Shared*>(ring + slots * slot_bytes);
    const int rank = blockIdx.x % group, groups = gridDim.x / group;
    const int begin = min(packs, rank * span), mine = min(packs, begin + span) - begin;
    if (threadIdx.x == 0) {
        for (int k = 0; k < slots; ++k) {
            init_barrier(&shared.full[k], 1);
            init_barrier(&shared.empty[k], threads / 32);
        }
$init        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
$together    Cursor cursor = {0, 0};
    if (threadIdx.x >= threads) {
        if (threadIdx.x == threads) {
            for (long long r = blockIdx.x / group; r < rows; r += groups) {
                for (int k = 0; k < pieces; ++k, cursor.advance()) {
                    wait_barrier(&shared.empty[cursor.slot], cursor.round ^ 1);
                    const int count = max(0, min(piece, mine - k * piece));
                    arrive_expect(&shared.full[cursor.slot], unsigned(count) * 16 * $held);
                    const long long from = r * cols + (begin + k * piece) * 4LL;
                    char* to = ring + cursor.slot * slot_bytes;
                    if (count > 0) {
$copies                    }
                }
            }
        }
        __syncwarp();
    } else {
        const int lane = threadIdx.x % 32;
        unsigned turn = 0;  // exchanges so far
$weights        for (long long r = blockIdx.x / group; r < rows; r += groups) {
            const long long base = r * cols;
            Row row = begin_row(t, r);
            const Cursor start = cursor;
$stages            cursor = start;
$write            if (rank == 0 && threadIdx.x == 0) write_row(t, r, row);
        }
    }
$leave}
""",
        threads=threads,
        groups=groups,
        blocks=blocks,
        group=plan.group,
        slot=plan.slot_bytes,
        shared_bytes=SHARED_BYTES,
        reserved=RESERVED_BYTES,
        held=len(code.held),
        keep=f"\nconstexpr int keep = least({plan.keep_wanted}, pieces, 64);" if plan.keep else "",
        demands="\n".join(
            [
                demand("cols % 4 == 0", "rows of a multiple of 4 elements"),
                demand("room >= pieces", f"rows that fit the shared memory of {plan.group} blocks"),
            ]
        ),
        primitives=_PRIMITIVES,
        exchange=CLUSTER + _CLUSTER_EXCHANGE if cluster else _GRID_EXCHANGE,
        shared=_shared_fields(code, cluster),
        read="".join(_read_line(k, s.field) for k, s in enumerate(code.held)),
        dims=f"__cluster_dims__({cluster}, 1, 1) " if cluster > 1 else "",
        workspace_argument="" if cluster else ", unsigned* arrived, float* posted",
        init="        for (int k = 0; k < 2; ++k) init_barrier(&shared.arrived[k], group);\n" if cluster else "",
        together="    cluster_arrive();\n    cluster_wait();\n" if cluster else "",
        copies="".join(
            f"                        copy_piece(to + {k} * piece * 16, t.{s.tensor} + from, unsigned(count) * 16,\n"
            f"                                   &shared.full[cursor.slot]);\n"
            for k, s in enumerate(code.held)
        ),
        weights=_WEIGHTS if plan.keep else "",
        stages="".join(_stage(k, cluster, k + 1 == len(code.stages), plan.keep) for k in range(len(code.stages))),
        write=_write(plan.keep),
        leave="    cluster_arrive();\n    cluster_wait();\n" if cluster else "",
    )
    return text + (_RESIDENT if cluster else ""), _launch(cluster)


def ring_workspace_bytes(code: RowCode) -> str:
    """Counters (one per exchange of a row, 256-byte aligned) and posted states, as a C expression."""
    return f"playbook::counter_bytes + playbook::exchanges * playbook::group * {code.state_bytes}"


def _shared_fields(code: RowCode, cluster: int) -> str:
    size = f"{code.state_bytes // 4}"
    inbox = f"    unsigned long long arrived[2];\n    float inbox[2][group][{size}];\n" if cluster else ""
    return f"{inbox}    float warps[2][threads / 32][{size}];\n    float total[2][{size}];\n"


def _read_line(k: int, field: str) -> str:
    return (
        f"    const float4 q{k} = reinterpret_cast<const float4*>(slot + {k} * piece * 16)[at];\n"
        f"    h.{field} = {{q{k}.x, q{k}.y, q{k}.z, q{k}.w}};\n"
    )


def _stage(stage: int, cluster: int, last: bool, keep: int) -> str:
    exchange = (
        "exchange(state, shared, turn)"
        if cluster
        else f"exchange(state, shared, turn, arrived + {stage} * rows + r,\n"
        f"                                 posted + ({stage} * rows + r) * group * posted_floats)"
    )
    return fill(
        """\
$declare            {
                State$s state = State$s::empty();
                cursor = start;
#pragma unroll 1
                for (int k = 0; k < pieces; ++k, cursor.advance()) {
                    const int count = min(piece, mine - k * piece);
                    const char* slot = ring + cursor.slot * slot_bytes;
                    $wait
                    Values$s<batch * width> values;
                    int valid = 0;
#pragma unroll
                    for (int b = 0; b < batch; ++b) {
                        const int at = threadIdx.x + b * threads;
                        const bool inside = at < count;
                        Held h = {};
                        Extra$s x = {};
                        if (inside) {
                            h = read_slot(slot, at);
                            x = load_extra$s(t, base, (begin + k * piece + at) * width);
                            valid += width;
                        }
                        evaluate$s(values, b * width, inside, h, x, row);
                    }
                    state.push(values, valid);
                }
$prefetch                state = $exchange;
                ++turn;
                finish$s(state, row);
            }
""",
        s=stage,
        wait="wait_barrier(&shared.full[cursor.slot], cursor.round);" if stage == 0 else "",
        exchange=exchange,
        declare="            ExtraOut ahead[batch];\n" if last else "",
        prefetch=fill(_AHEAD, first="keep" if keep else 0) if last else "",
    )


_AHEAD = "                load_ahead(ahead, t, base, begin, mine, $first);  // before the wait\n"


def _write(keep: int) -> str:
    """Writes the row out of the ring: pieces with kept weights first, the others with weights loaded one ahead.

    The second loop is not unrolled: its addresses, hoisted out of the loop over rows, would fill the registers.
    """
    kept = fill(_WRITE, first=0, last="keep", unroll="", take="kept[k * batch + b]", ahead="") if keep else ""
    ahead = "                if (k + 1 < pieces) load_ahead(ahead, t, base, begin, mine, k + 1);\n"
    return kept + fill(_WRITE, first="keep" if keep else 0, last="pieces", unroll=" 1", take="ahead[b]", ahead=ahead)


def _launch(cluster: int) -> list[str]:
    raise_limit = [
        "using namespace playbook;",
        "cudaError_t error =",
        "    cudaFuncSetAttribute(stream_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);",
        "if (error != cudaSuccess) return int(error);",
    ]
    if cluster:
        return [
            *raise_limit,
            "cudaLaunchConfig_t config = {};",
            "config.gridDim = dim3(grid);",
            "config.blockDim = dim3(playbook::threads + 32);",
            "config.dynamicSmemBytes = shared_bytes;",
            "config.stream = stream;",
            "// Rows are dealt out evenly, so no cluster may wait for another to end.",
            "static const int resident = resident_clusters(config);",
            "if (resident < 1) return int(cudaErrorInvalidConfiguration);",
            "if (int(config.gridDim.x) > resident * group) config.gridDim.x = resident * group;",
            "return int(cudaLaunchKernelEx(&config, stream_rows, Tensors{$tensors}));",
        ]
    return [
        *raise_limit,
        "Tensors t = {$tensors};",
        "unsigned* arrived = static_cast<unsigned*>(workspace);",
        "float* posted = reinterpret_cast<float*>(static_cast<char*>(workspace) + counter_bytes);",
        "error = cudaMemsetAsync(arrived, 0, counter_bytes, stream);",
        "if (error != cudaSuccess) return int(error);",
        "void* arguments[] = {&t, &arrived, &posted};",
        "return int(cudaLaunchCooperativeKernel(stream_rows, dim3(grid), dim3(playbook::threads + 32), arguments,",
        "                                       size_t(shared_bytes), stream));",
    ]


def ring_constants(code: RowCode) -> str:
    """Sizes of the grid exchange's workspace."""
    return (
        f"constexpr size_t exchanges = rows * {len(code.stages)}, counter_bytes = (4 * exchanges + 255) / 256 * 256;\n"
        f"constexpr int posted_floats = {code.state_bytes // 4};\n"
    )


_RESIDENT = """
inline int resident_clusters(cudaLaunchConfig_t config) {
    cudaLaunchAttribute shape = {};
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {group, 1, 1};
    config.attrs = &shape;
    config.numAttrs = 1;
    int count = 0;
    return cudaOccupancyMaxActiveClusters(&count, stream_rows, &config) == cudaSuccess ? count : 0;
}
"""
_WEIGHTS = """\
        ExtraOut kept[keep * batch];  // the columns are the same in every row
#pragma unroll
        for (int k = 0; k < keep * batch; ++k) {
            const int at = threadIdx.x + (k % batch) * threads, offset = (k / batch) * piece;
            if (at < min(piece, mine - offset)) kept[k] = load_extra_out(t, 0, (begin + offset + at) * width);
        }
"""
_WRITE = """\
#pragma unroll$unroll
            for (int k = $first; k < $last; ++k, cursor.advance()) {
                const int count = min(piece, mine - k * piece);
                const char* slot = ring + cursor.slot * slot_bytes;
                ExtraOut x[batch];
#pragma unroll
                for (int b = 0; b < batch; ++b) x[b] = $take;
$ahead#pragma unroll
                for (int b = 0; writes_elements && b < batch; ++b) {
                    const int at = threadIdx.x + b * threads;
                    const int col = (begin + k * piece + at) * width;
                    if (at < count) write(t, base, col, read_slot(slot, at), x[b], row);
                }
                __syncwarp();
                if (lane == 0) arrive(&shared.empty[cursor.slot]);
            }
"""
_PRIMITIVES = """\
__device__ __forceinline__ unsigned address(const void* shared) { return unsigned(__cvta_generic_to_shared(shared)); }
__device__ __forceinline__ void init_barrier(unsigned long long* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(unsigned long long* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expect(unsigned long long* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void wait_barrier(unsigned long long* barrier, unsigned parity) {
    asm volatile(
        "{\\n"
        ".reg .pred done;\\n"
        "again_%=:\\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\\n"
        "@!done bra again_%=;\\n"
        "}\\n" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}
// Rows are read once: evict first, so that weights stay in L2.
__device__ __forceinline__ void copy_piece(char* to, const float* from, unsigned bytes, unsigned long long* barrier) {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(barrier)), "l"(policy)
        : "memory");
}
// A barrier among the consumer warps alone.
__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory"); }
"""
_CLUSTER_EXCHANGE = """\
// Every consumer warp gets the block's state; the turn's parity picks one of two buffers.
template <class S, class Memory>
__device__ __forceinline__ S merge_consumers(S state, Memory& shared, unsigned turn) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    state = merge_warp(state);
    if (lane == 0) *reinterpret_cast<S*>(shared.warps[turn & 1][warp]) = state;
    sync_consumers();
    return merge_warp(lane < threads / 32 ? *reinterpret_cast<const S*>(shared.warps[turn & 1][lane]) : S::empty());
}
// Warp 0 writes the block's state into every peer's inbox and arrives at the peer's barrier. An inbox is written again
// two turns later, after every peer has arrived in the turn between, which it does when it has read the inbox.
template <class S, class Memory>
__device__ __forceinline__ S exchange(S state, Memory& shared, unsigned turn) {
    state = merge_consumers(state, shared, turn);
    if (group == 1) return state;
    const unsigned lane = threadIdx.x % 32, buffer = turn & 1, rank = blockIdx.x % group;
    if (threadIdx.x < group) {
        constexpr int words = sizeof(S) / 4;
        const float* from = reinterpret_cast<const float*>(&state);
        const unsigned to = peer_address(shared.inbox[buffer][rank], lane);
#pragma unroll
        for (int k = 0; k < words; ++k)
            asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to + 4 * k), "f"(from[k]) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                         peer_address(&shared.arrived[buffer], lane))
                     : "memory");
    }
    wait_barrier(&shared.arrived[buffer], (turn >> 1) & 1);
    return merge_warp(lane < group ? *reinterpret_cast<const S*>(shared.inbox[buffer][lane]) : S::empty());
}
"""
_GRID_EXCHANGE = """\
// One warp of every block posts the block's state, counts itself in, and merges all posted states in the same order.
// One warp, because every load here goes to the same few L2 slices: with all warps reading, a row took 27 us, 8 of
// them for memory (NVIDIA H200, layernorm of 16 x 4194304, benchmarks/templates.py).
template <class S, class Memory>
__device__ __forceinline__ S exchange(S state, Memory& shared, unsigned turn, unsigned* arrived, float* posted) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    S* block_states = reinterpret_cast<S*>(shared.warps[turn & 1]);
    S* total = reinterpret_cast<S*>(shared.total[turn & 1]);
    state = merge_warp(state);
    if (lane == 0) block_states[warp] = state;
    sync_consumers();
    if (warp == 0) {
        S* states = reinterpret_cast<S*>(posted);
        state = merge_warp(lane < threads / 32 ? block_states[lane] : S::empty());
        if (lane == 0) {
            states[blockIdx.x] = state;
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
            unsigned count;
            do {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
            } while (count < group);
        }
        __syncwarp();
        constexpr int each = (group + 31) / 32, words = sizeof(S) / 4;
        S others[each];
#pragma unroll
        for (int k = 0; k < each; ++k) {
            others[k] = S::empty();
            float* to = reinterpret_cast<float*>(&others[k]);
#pragma unroll
            for (int w = 0; w < words; ++w)
                if (lane + 32 * k < group) to[w] = __ldcg(reinterpret_cast<const float*>(states + lane + 32 * k) + w);
        }
        state = others[0];
#pragma unroll
        for (int k = 1; k < each; ++k) state.merge(others[k]);
        state = merge_warp(state);
        if (lane == 0) *total = state;
    }
    sync_consumers();
    return *total;
}
"""
