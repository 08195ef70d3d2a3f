"""Write synthetic sessions of any size, with the event mix of a search, for benchmarks, tests and screenshots.

Usage: python benchmarks/synthetic_session.py DIRECTORY [--variants 5000] [--problems 4] [--device cuda]
       python benchmarks/synthetic_session.py DIRECTORY --live --rate 50 [--seconds 60]

The first command writes a session and exits. With ``--live``, the program then acts as the session's engine: it takes
the lock, writes heartbeats, and appends events at the given rate.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.synthetic_calls import MODEL, Calls, digest_of
from engine.devices.fact import DeviceFact
from engine.devices.sample import DeviceSample, encode_samples
from engine.problem.spec import ProblemSpec, TensorSpec
from engine.session.records import events as ev
from engine.session.records import requests as requests
from engine.session.records.events import AnyEvent, Selected, encode, kind_of
from engine.session.records.model_calls import Purpose
from engine.session.records.other_sizes import AtSizes
from engine.session.records.requests import encode_command
from engine.session.records.verdict import Baseline, BuildReport, CheckResult, Standing, Status, Timing, Verdict
from engine.session.store import EngineLock, EventWriter, SessionPaths, create_session

CPU = DeviceFact(id="cpu", kind="cpu", name="Intel(R) Xeon(R) Processor", arch="x86_64", memory_bytes=24 << 30, cores=2)
GPU = DeviceFact(id="GPU-1b6f0d2e", kind="cuda", name="NVIDIA H200", arch="sm_90a", memory_bytes=141 << 30, cores=132)
PROBLEMS = ("softmax", "layernorm", "gelu", "conv2d_relu_maxpool", "matmul", "rmsnorm", "swiglu", "attention")
IDEAS = (
    ("memory", "Read rows as float4 through the read-only cache and keep them in registers between the two passes"),
    ("latency", "Double-buffer the tiles with cp.async so that loads of the next tile overlap the arithmetic"),
    ("compute", "Fuse the maximum and the sum into one online pass, rescaling the running sum"),
    ("parallelism", "Give each row to a warp instead of a block, so that no shared memory is needed to reduce"),
    ("control", "Unroll the inner loop by eight and peel the tail, so that the hot loop has no bounds check"),
    ("precision", "Accumulate in fp32 but keep the staged tile in bf16 to halve the traffic of shared memory"),
)
STAGES: tuple[ev.Stage, ...] = ("queued", "building", "waiting", "checking", "timing")
FAILURES: tuple[tuple[Status, str], ...] = (
    ("wrong", "max abs error 3.1e-02 at out[17, 4093], allowed 1e-04"),
    ("build_error", 'kernel.cu(41): error: identifier "row_stride" is undefined'),
    ("out_of_bounds", "wrote 64 bytes past the end of out"),
    ("timeout", "checking took longer than 10 s"),
    ("cheating", "returned the output of an earlier call"),
)
SOURCE = """// {idea}
#include <cuda_runtime.h>

constexpr int kThreads = {threads};

__device__ __forceinline__ float warp_max(float v) {{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
    return v;
}}

__global__ void __launch_bounds__(kThreads) {name}_kernel(const float* __restrict__ x, float* __restrict__ out) {{
    extern __shared__ float tile[];
    const long long row = blockIdx.x;
    const float4* in = reinterpret_cast<const float4*>(x + row * x_dim1);
    float best = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < x_dim1 / 4; i += kThreads) {{
        const float4 v = __ldg(in + i);  // {note}
        const float local = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
        const float next = fmaxf(best, local);
        sum = sum * __expf(best - next) + __expf(v.x - next) + __expf(v.y - next) + __expf(v.z - next);
        best = next;
    }}
    best = warp_max(best);
    for (int i = threadIdx.x; i < x_dim1; i += kThreads) out[row * x_dim1 + i] = __expf(x[i] - best) / sum;
}}

extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {{
    {name}_kernel<<<x_dim0, kThreads, {shared}, stream>>>(x, out);
    return static_cast<int>(cudaGetLastError());
}}
"""


@dataclass(frozen=True)
class Shape:
    """The size of a session. Kernels are spread over problems and rounds, and ``flying`` kernels have no verdict."""

    variants: int = 300
    problems: int = 4
    rounds: int = 5
    per_idea: int = 4
    flying: int = 4
    device: DeviceFact = CPU
    seed: int = 1
    step_s: float = 0.5
    """Seconds between events."""
    attended: bool = False
    """Whether to add the events of a language model and of a user who steers the search."""


class Search:
    """Generate the events of a synthetic search. ``blobs`` collects the sources in the events."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.blobs: dict[str, bytes] = {}
        self._rng = random.Random(shape.seed)
        self._ideas = 0
        self._variants = 0
        self._speedup: dict[str, float] = {}
        self._best: dict[str, str] = {}
        self._calls = Calls(shape.seed, self._store) if shape.attended else None
        self.commands: list[requests.Command] = []

    def opening(self) -> Iterator[AnyEvent]:
        shape = self.shape
        yield ev.EngineStarted(
            pid=4242,
            host="node7",
            version="0.1.0",
            resumed=False,
            devices=(shape.device,),
            sandbox="user, net, pid namespaces; Landlock; seccomp",
        )
        yield ev.LogLine(level="info", text=f"searching {shape.problems} problems on {shape.device.name}")
        if shape.attended:
            yield ev.DeviceMeasured(device=structs.replace(shape.device, bandwidth_gbs=4022.0, peak_gflops=59_800.0))
        for number in range(shape.problems):
            name = self.problem(number)
            yield ev.ProblemAdded(problem=_spec(name), language=self.language, header=HEADER)
            yield ev.BaselineMeasured(problem=name, baseline=Baseline("eager", _timing(4.0 + number)), sol_ms=0.9)
            if number % 2 == 0:
                yield ev.BaselineMeasured(problem=name, baseline=Baseline("compile", _timing(2.5 + number)))

    def rounds(self) -> Iterator[AnyEvent]:
        """Yield all rounds of all problems, interleaved as in a real search. The last round stays open."""
        shape = self.shape
        parents: dict[str, tuple[Selected, ...]] = {self.problem(p): () for p in range(shape.problems)}
        per_round = max(1, shape.variants // (shape.problems * shape.rounds))
        for number in range(shape.rounds):
            last = number == shape.rounds - 1
            for place in range(shape.problems):
                problem = self.problem(place)
                budget = min(per_round, shape.variants - self._variants)
                if last and place == shape.problems - 1:
                    budget = shape.variants - self._variants
                made: list[str] = []
                yield ev.RoundStarted(problem=problem, round=number, parents=parents[problem])
                asked: set[str | None] = set()
                while len(made) < budget:
                    selected_because = parents[problem]
                    parent = self._rng.choice(selected_because).variant if selected_because else None
                    count = min(shape.per_idea, budget - len(made))
                    calls = self._calls if self._calls is not None and self._calls.writes() else None
                    if calls is not None and parent not in asked:
                        asked.add(parent)
                        yield from calls.call(problem, number, "ideas", parent or "", 0)
                    yield from self.idea(problem, number, parent, count, made, fly=last, calls=calls)
                if shape.attended and made and not last:
                    yield from self._pinned(made[0])
                if last:
                    continue
                known = {*made, *(one.variant for one in parents[problem])}
                ranked = sorted((v for v in known if v in self._speedup), key=lambda v: (-self._speedup[v], v))[:3]
                self._best[problem] = ranked[0] if ranked else ""
                if ranked:
                    yield ev.RunoffFinished(problem=problem, round=number, standings=_standings(ranked, self._speedup))
                parents[problem] = (
                    tuple(
                        Selected(v, f"place {place + 1} of {len(made)} in the runoff of round {number}")
                        for place, v in enumerate(ranked)
                    )
                    or parents[problem]
                )
                dropped = tuple(Selected(v, "slower than third place in the runoff") for v in made if v not in ranked)
                yield ev.RoundFinished(problem=problem, round=number, selected=parents[problem], dropped=dropped)

    def closing(self) -> Iterator[AnyEvent]:
        """Yield the events after the last round."""
        for problem in self._best if self.shape.attended else ():
            yield ev.ProblemFinished(problem=problem, reason=f"all {self.shape.rounds} rounds are done")
            sizes = tuple(
                _at_sizes(label, rows) for label, rows in (("smaller", 2048), ("odd", 4095), ("larger", 8192))
            )
            yield ev.SizesChecked(problem=problem, variant=self._best[problem], results=sizes)
        yield ev.EngineStopped(reason="finished", message="the search is complete")

    def idea(
        self,
        problem: str,
        number: int,
        parent: str | None,
        count: int,
        made: list[str],
        *,
        fly: bool = False,
        calls: Calls | None = None,
    ) -> Iterator[AnyEvent]:
        """Yield an idea with ``count`` kernels, each with all stages and a verdict. ``calls`` generates model calls."""
        category, text = self._rng.choice(IDEAS)
        self._ideas += 1
        idea, proposer = f"i{self._ideas}", MODEL if calls is not None else "playbook"
        yield ev.IdeaProposed(
            idea=idea, problem=problem, round=number, parent=parent, category=category, text=text, proposer=proposer
        )
        failed: str | None = None
        for place in range(count):
            if calls is not None:
                yield from calls.useless(problem, number, idea, place)
                purpose: Purpose = "kernel" if failed is None else "fix"
                yield from calls.call(problem, number, purpose, failed or idea, 0 if failed else place)
            self._variants += 1
            variant = f"v{self._variants}"
            made.append(variant)
            threads = self._rng.choice((64, 128, 256, 512))
            note = f"threads={threads} vec={self._rng.choice((1, 2, 4))} unroll={self._rng.choice((1, 2, 4, 8))}"
            source = SOURCE.format(
                idea=text, note=note, threads=threads, name=problem, shared=16 * self._variants % 999
            )
            yield ev.VariantWritten(
                variant=variant,
                idea=idea,
                problem=problem,
                round=number,
                parent=failed or parent,
                language=self.language,
                source=self._store(source),
                proposer=proposer,
                note=note if failed is None else f"fix 1 of {failed}",
                data={"family": "rows", "threads": threads},
            )
            flies = fly and self._variants > self.shape.variants - self.shape.flying
            until = 1 + (self.shape.variants - self._variants) % len(STAGES) if flies else len(STAGES)
            for stage in STAGES[:until]:
                yield ev.VariantStage(variant=variant, stage=stage)
            if not flies:
                verdict = self._verdict(variant, parent, number)
                yield ev.VerdictGiven(variant=variant, verdict=verdict)
                repaired = failed is None and calls is not None and verdict.status == "build_error"
                failed = variant if repaired else None

    def live(self) -> Iterator[AnyEvent]:
        """Yield ideas of the last round, endlessly."""
        while True:
            problem = self.problem(self._rng.randrange(self.shape.problems))
            made: list[str] = []
            yield from self.idea(problem, self.shape.rounds - 1, self._best.get(problem), 4, made)

    def _pinned(self, variant: str) -> Iterator[AnyEvent]:
        """Yield the events of a user who pins a kernel and then unpins it."""
        pin, unpin = requests.Pin(node=variant), requests.Unpin(node=variant)
        self.commands.append(pin)
        yield ev.NodePinned(node=variant)
        yield ev.CommandHandled(command=len(self.commands), ok=True, message=f"pinned {variant}", node=variant)
        self.commands.append(unpin)
        yield ev.NodeUnpinned(node=variant)
        yield ev.CommandHandled(command=len(self.commands), ok=True, message=f"unpinned {variant}", node=variant)

    def problem(self, number: int) -> str:
        return PROBLEMS[number] if number < len(PROBLEMS) else f"problem_{number}"

    @property
    def language(self) -> str:
        return "cu" if self.shape.device.kind == "cuda" else "cpp"

    def _store(self, source: str) -> str:
        digest = digest_of(source)
        self.blobs[digest] = source.encode()
        return digest

    def _verdict(self, variant: str, parent: str | None, number: int) -> Verdict:
        rng = self._rng
        build = BuildReport(
            True, 0.4 + rng.random(), "nvcc -O3 -arch=sm_90a", registers=rng.randrange(24, 128), spill_bytes=0
        )
        if rng.random() < 0.28:
            status, reason = rng.choice(FAILURES)
            if status == "build_error":
                build = BuildReport(False, 0.3, "nvcc -O3 -arch=sm_90a kernel.cu", log=f"{reason}\n1 error detected")
            return Verdict(status=status, reason=reason, build=build, device=self.shape.device.id)
        base = self._speedup.get(parent or "", 0.8 + 0.1 * number)
        speedup = base * rng.uniform(0.75, 1.3 if rng.random() < 0.3 else 1.02)
        self._speedup[variant] = speedup
        problem = next((p for p in self._best if self._best[p] == parent), None)
        if problem is not None and speedup > base:
            self._best[problem] = variant
        ms = 4.0 / speedup
        return Verdict(
            status="correct",
            device=self.shape.device.id,
            speedup=speedup,
            speedup_low=speedup * 0.994,
            speedup_high=speedup * 1.006,
            pairs=60,
            kernel=_timing(ms),
            reference=_timing(4.0),
            max_abs_error=2.4e-7,
            max_rel_error=3.1e-6,
            sol_ms=0.9,
            sol_share=min(1.0, 0.9 / ms),
            checks=tuple(CheckResult(name, True, detail) for name, detail in CHECKS),
            build=build,
            stage_s={"queue": 0.1, "build": 0.6, "start": 0.1, "check": 0.5, "timing": 0.9},
            sandbox="user, net, pid namespaces; Landlock; seccomp",
        )


HEADER = (
    "constexpr long long x_dim0 = 4096;\nconstexpr long long x_dim1 = 65536;\n"
    'extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream);\n'
)
CHECKS = (
    ("8 inputs of 4 distributions", "largest error 2.4e-07"),
    ("poisoned outputs", "two poisons, equal outputs"),
    ("redzones", "intact"),
    ("inputs unchanged", "checksums equal"),
    ("outputs of timed calls", "6 of 60 sampled, all right"),
)


def write_session(
    root: Path, name: str, shape: Shape, *, end: float | None = None, ended: bool = False
) -> SessionPaths:
    """Write a session whose last event is at ``end`` (Unix seconds, default now). ``ended``: whether the search has
    ended.
    """
    paths = create_session(root, name, "# a synthetic session\n", "synthetic.toml", shape.seed)
    search = Search(shape)
    events = [*search.opening(), *search.rounds()]
    if ended:
        events += search.closing()
    until = time.time() if end is None else end
    start = until - shape.step_s * len(events)
    with sqlite3.connect(paths.database) as db:
        db.execute("UPDATE event SET time = ?", (start,))
        db.executemany(
            "INSERT INTO event (time, kind, json) VALUES (?, ?, ?)",
            (
                (start + shape.step_s * place, kind_of(event), encode(event).decode())
                for place, event in enumerate(events, 1)
            ),
        )
        db.executemany(
            "INSERT INTO command (time, author, json) VALUES (?, 'monitor', ?)",
            ((start, encode_command(command).decode()) for command in search.commands),
        )
        db.executemany(
            "INSERT INTO blob VALUES (?, ?, ?)",
            ((digest, zlib.compress(content, 1), start) for digest, content in search.blobs.items()),
        )
        db.executemany(
            "INSERT INTO sample (time, json) VALUES (?, ?)",
            ((until - 119 + second, encode_samples(reading(shape.device, second))) for second in range(120)),
        )
    db.close()
    return paths


def reading(device: DeviceFact, second: int) -> list[DeviceSample]:
    """Return a plausible device reading that varies with ``second``."""
    wave = 50 + 45 * ((second * 37) % 23) / 23
    if device.kind == "cpu":
        return [
            DeviceSample(
                device="cpu",
                kind="cpu",
                utilization=wave,
                memory_used=6 << 30,
                memory_total=24 << 30,
                cores=(wave, wave),
                load=1.7,
            )
        ]
    return [
        DeviceSample(
            device=device.id,
            kind="cuda",
            utilization=wave,
            memory_used=9 << 30,
            memory_total=device.memory_bytes,
            power_w=310 + 2 * wave,
            power_limit_w=700,
            temperature_c=44 + wave / 10,
            clock_mhz=1980,
            memory_clock_mhz=3201,
        ),
        DeviceSample(device="cpu", kind="cpu", utilization=23, memory_used=6 << 30, memory_total=128 << 30, load=2.5),
    ]


def run_live(paths: SessionPaths, shape: Shape, rate: float, seconds: float) -> None:
    """Act as the session's engine: take the lock, and write heartbeats, readings and ``rate`` events per second."""
    search = Search(shape)
    for _ in search.rounds():  # continue the numbering of the written session
        pass
    search.blobs.clear()
    lock = EngineLock(paths)
    writer = EventWriter(paths)
    events = search.live()
    started = time.monotonic()
    sent, beat = 0, -1
    try:
        while (elapsed := time.monotonic() - started) < seconds:
            while sent < elapsed * rate:
                event = next(events)
                for content in list(search.blobs.values()):
                    writer.put_blob(content)
                search.blobs.clear()
                writer.append(event)
                sent += 1
            if int(elapsed) > beat:
                beat = int(elapsed)
                writer.heartbeat("synthetic")
                writer.sample(reading(shape.device, beat))
            time.sleep(0.02)
    finally:
        writer.close()
        lock.release()


def _spec(name: str) -> ProblemSpec:
    tensors = (
        TensorSpec("x", "input", "float32", (4096, 65536)),
        TensorSpec("out", "output", "float32", (4096, 65536)),
    )
    return ProblemSpec(id=name, name=name, path=f"problems/{name}.py", source="", tensors=tensors, sol_bytes=1 << 31)


def _at_sizes(label: str, rows: int) -> AtSizes:
    return AtSizes(
        label,
        {"ROWS": rows},
        f"x [{rows}, 65536]",
        "correct",
        kernel_ms=rows / 2000,
        eager_ms=rows / 1000,
        speedup=2.0,
        speedup_low=1.98,
        speedup_high=2.02,
    )


def _timing(ms: float) -> Timing:
    return Timing(ms, ms * 0.98, ms * 1.03, 60)


def _standings(ranked: list[str], speedup: dict[str, float]) -> tuple[Standing, ...]:
    first = speedup[ranked[0]]
    return tuple(
        Standing(v, 4.0 / speedup[v], first / speedup[v], first / speedup[v] * 0.99, first / speedup[v] * 1.01, False)
        for v in ranked
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, help="directory for the sessions")
    parser.add_argument("--name", default="synthetic")
    parser.add_argument("--variants", type=int, default=300)
    parser.add_argument("--problems", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--finished", action="store_true")
    parser.add_argument("--attended", action="store_true", help="add a language model's calls and a user's requests")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--rate", type=float, default=50.0, help="events per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    device = GPU if options.device == "cuda" else CPU
    shape = Shape(options.variants, options.problems, options.rounds, device=device, attended=options.attended)
    paths = write_session(options.directory, options.name, shape, ended=options.finished)
    print(paths.directory, flush=True)
    if options.live:
        run_live(paths, shape, options.rate, options.seconds)


if __name__ == "__main__":
    main()
