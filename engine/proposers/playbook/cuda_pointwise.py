"""Pointwise chains in plain CUDA C++: one pass, every input element read once, every output element written once."""

from __future__ import annotations

from engine.events import DeviceFact
from engine.problem.spec import ProblemSpec
from engine.proposers.playbook.cuda_text import (
    HELPERS,
    Stream,
    fill,
    launch,
    packs,
    pick,
    place,
    statements,
    stream_of,
    streams,
)
from engine.proposers.playbook.demands import program_demands
from engine.proposers.playbook.ir import PointwiseProgram, Program
from engine.proposers.playbook.sizes import text
from engine.proposers.playbook.template import Choice, Choices, First, Move, Recipe, Template

PLAIN: Choices = {
    "width": 1,
    "threads": 256,
    "unroll": 1,
    "persistent": False,
    "blocks": 4,
    "read": "plain",
    "store": "plain",
    "math": "precise",
    "sms": 0,
}
"""Round 0: an element per thread. ``persistent``: a grid-stride loop over ``blocks`` blocks per multiprocessor."""

_FAST_OPS = frozenset({"exp", "log", "reciprocal", "div", "sigmoid", "tanh"})


class CudaPointwise(Template):
    """The pointwise family in CUDA C++."""

    name = "pointwise_cu"
    family = "pointwise"
    language = "cu"

    def first(self, program: Program, spec: ProblemSpec, device: DeviceFact) -> list[First]:
        text = "One thread computes one element, the whole chain in registers, so that no intermediate goes to memory."
        return [First("plain", text, Recipe(self.name, {**PLAIN, "sms": device.cores}))]

    def moves(self, program: Program, recipe: Recipe, device: DeviceFact) -> list[Move]:
        chain, now = _as_pointwise(program), recipe.choices
        found: list[Move] = []
        if now["width"] != 4:
            found.append(
                Move(
                    "vector_loads",
                    "memory",
                    "Move 16 bytes per load and store (float4): a quarter of the memory instructions "
                    "for the same bytes.",
                    {"width": 4},
                    ("width", "threads"),
                    gain=1.5,
                    helps="memory",
                )
            )
        elif now["unroll"] == 1:
            found.append(
                Move(
                    "loads_in_flight",
                    "latency",
                    "Let each thread issue several independent loads before the first use, to cover memory latency.",
                    {"unroll": 2},
                    ("unroll", "threads"),
                    gain=1.05,
                    helps="latency",
                )
            )
        if now["store"] != "stream":
            found.append(
                Move(
                    "streaming_stores",
                    "memory",
                    "Results are not read again: write them with evict-first stores, so that they do not push inputs "
                    "out of L2.",
                    {"store": "stream"},
                    ("store", "read"),
                    gain=1.04,
                    helps="memory",
                )
            )
        if now["math"] != "fast" and any(chain.values[k].op in _FAST_OPS for k in chain.order):
            found.append(
                Move(
                    "fast_math",
                    "compute",
                    "Use the special-function unit: exp as one exp2 with log2(e) folded in, tanh and sigmoid through "
                    "it, division by a fast reciprocal. Errors stay near 1e-6.",
                    {"math": "fast"},
                    (),
                    gain=1.1,
                    helps="compute",
                )
            )
        blocks = chain.numel // (int(now["width"]) * int(now["threads"]) * int(now["unroll"]))
        if not now["persistent"] and device.cores and blocks > device.cores * int(now["blocks"]):
            found.append(
                Move(
                    "persistent_grid",
                    "parallelism",
                    "Start only as many blocks as fit the device and let each walk the data with a grid-stride loop, "
                    "so that block start-up is paid once.",
                    {"persistent": True},
                    ("blocks", "threads"),
                    gain=1.0,
                )
            )
        return found

    def knobs(self, program: Program, recipe: Recipe, device: DeviceFact) -> dict[str, tuple[Choice, ...]]:
        # NVIDIA H200, gelu of 8192 x 16384 written in primitives (benchmarks/templates.py measure; floor 0.250 ms,
        # torch.compile 0.256, eager 2.75): plain 0.42; width 4 with fast math and streaming, 256 threads, unroll 1:
        # 0.267; unroll 2 or 4: 0.28; a persistent grid of 4 blocks per multiprocessor: 0.28 to 0.31.
        found: dict[str, tuple[Choice, ...]] = {
            "width": (1, 2, 4),
            "threads": (128, 256, 512, 1024),
            "unroll": (1, 2, 4, 8),
            "read": ("plain", "stream"),
            "store": ("plain", "stream"),
        }
        if recipe.choices["persistent"]:
            found["blocks"] = (1, 2, 4, 8, 16)
        return found

    def emit(self, program: Program, recipe: Recipe, spec: ProblemSpec) -> str:
        chain, choices = _as_pointwise(program), recipe.choices
        width, fast = int(choices["width"]), choices["math"] == "fast"
        found = streams(chain.values, chain.order)
        tensors = tuple(dict.fromkeys((*(s.tensor for s in found), *(s.tensor for s in chain.stores))))
        outputs = {t.name for t in spec.outputs}
        limit = int(choices["sms"]) * int(choices["blocks"]) if choices["persistent"] else 0
        kernel = fill(
            _KERNEL,
            width=width,
            elements=text(chain.numel),
            demands="\n".join(program_demands(chain, chain.order, spec)),
            threads=choices["threads"],
            unroll=choices["unroll"],
            limit=f" : blocks > {limit} ? {limit}" if limit else "",
            helpers=HELPERS + packs(str(choices["read"]), str(choices["store"])),
            pointers="".join(f"    {'' if n in outputs else 'const '}float* {n};\n" for n in tensors),
            fields="".join(f"    Pack {s.field};\n" for s in found),
            loads="".join(f"    p.{s.field} = {_load(s, chain.numel)};\n" for s in found),
            body=_body(chain, found, fast),
            tail=_tail(chain, fast) if width > 1 else "",
            rest=_REST if width > 1 else "",
        )
        body = [
            f"playbook::pointwise<<<playbook::grid, playbook::threads, 0, stream>>>({{{', '.join(tensors)}}});",
            "return int(cudaGetLastError());",
        ]
        return kernel + launch(spec, tensors, body)

    def safer(self, program: Program, recipe: Recipe) -> Recipe | None:
        return recipe.with_({"math": "precise"}) if recipe.choices["math"] != "precise" else None


def _as_pointwise(program: Program) -> PointwiseProgram:
    if not isinstance(program, PointwiseProgram):
        raise TypeError("the pointwise family was given a row program; the analysis chose the wrong family")
    return program


def _load(stream: Stream, numel: int) -> str:
    whole = stream.access.inner == 1 and stream.access.count >= numel
    pointer = f"t.{stream.tensor}"
    return f"load_row({pointer} + i)" if whole else pick(stream.access, pointer, "i", "packs * width")


def _body(chain: PointwiseProgram, found: tuple[Stream, ...], fast: bool) -> str:
    """Computes and stores one pack."""

    def name(position: int) -> str | None:
        stream = stream_of(found, chain.values[position]) if chain.values[position].op == "load" else None
        return f"p.{stream.field}.at[u]" if stream else None

    lines, refer = statements(chain.values, chain.order, name, fast)
    lines += [f"y{n}.at[u] = {refer(s.value)};" for n, s in enumerate(chain.stores)]
    declared = "".join(f"    Pack y{n};\n" for n in range(len(chain.stores)))
    loop = "".join(f"        {line}\n" for line in lines)
    stores = "".join(f"    store(t.{s.tensor} + i, y{n});\n" for n, s in enumerate(chain.stores))
    return f"{declared}#pragma unroll\n    for (int u = 0; u < width; ++u) {{\n{loop}    }}\n{stores}"


def _tail(chain: PointwiseProgram, fast: bool) -> str:
    """Computes and stores one element ``i``."""

    def name(position: int) -> str | None:
        value = chain.values[position]
        if value.op != "load":
            return None
        return f"t.{value.tensor}[{place(value.access, 'i', 'numel')}]"

    lines, refer = statements(chain.values, chain.order, name, fast)
    lines += [f"t.{s.tensor}[i] = {refer(s.value)};" for s in chain.stores]
    body = "".join(f"    {line}\n" for line in lines)
    opening = "// Past the last whole pack.\n__device__ __forceinline__ void compute_one(const Tensors& t, Index i) {\n"
    return f"{opening}{body}}}\n"


_REST = """\
    if constexpr (numel % width != 0)
        if (blockIdx.x == 0 && Index(threadIdx.x) < numel - packs * width) compute_one(t, packs * width + threadIdx.x);
"""
_KERNEL = """\
#include <cuda_runtime.h>

#include <type_traits>

namespace playbook {

constexpr long long elements = $elements;
using Index = std::conditional_t<(elements < (1LL << 30)), int, long long>;
constexpr int width = $width, threads = $threads, unroll = $unroll;
constexpr Index numel = elements, packs = numel / width;
constexpr long long blocks = (packs + threads * unroll - 1) / (threads * unroll);
constexpr int grid = blocks < 1 ? 1$limit : blocks;
$demands
$helpers
struct Tensors {
$pointers};
struct Inputs {
$fields};
__device__ __forceinline__ Inputs load_pack(const Tensors& t, Index i) {
    Inputs p;
$loads    return p;
}
__device__ __forceinline__ void compute_pack(const Tensors& t, Index i, const Inputs& p) {
$body}
$tail
__global__ void __launch_bounds__(threads) pointwise(Tensors t) {
    constexpr Index step = Index(threads) * unroll;
    for (Index first = blockIdx.x * step + threadIdx.x; first < packs; first += gridDim.x * step) {
        Inputs p[unroll];
#pragma unroll
        for (int k = 0; k < unroll; ++k)
            if (first + k * threads < packs) p[k] = load_pack(t, (first + k * threads) * width);
#pragma unroll
        for (int k = 0; k < unroll; ++k)
            if (first + k * threads < packs) compute_pack(t, (first + k * threads) * width, p[k]);
    }
$rest}

}  // namespace playbook

"""
