"""Compare the search strategies offline, on recorded tables of kernel times.

    python benchmarks/strategies.py record DIR --seconds 240               # four headline problems; needs nvcc
    python benchmarks/strategies.py record DIR --seconds 480 --device cpu  # four quickstart problems; needs g++
    python benchmarks/strategies.py compare DIR --verdicts 40 --seeds 20

``record`` runs searches of all strategies on four problems, with the seeds of ``compare``, until the time is used up.
``record`` builds every kernel that a search requests, compares the kernel's outputs with float64 PyTorch, and times the
kernel. A kernel is correct if its error, ||out - reference|| / ||reference||, is at most LIMIT. The result is a table
for each problem that maps a kernel's choices to its time. A later ``record`` into the same folder adds to the tables.

- On a GPU, the time is the median of 15 calls with CUDA events. The script writes 256 MiB before each call, so that L2
is cold.
- On a CPU, the time is the minimum of 15 calls. The script writes 96 MiB before each call, so that all caches are cold.
The minimum excludes the effect of other programs. No compiler runs while the script times a kernel.

``compare`` repeats the searches with the seeds of ``record``, and looks up each kernel in the table. A kernel that is
not in the table does not count as a verdict, and the search continues without it. The searches have no runoffs, because
the recorded times have no noise. On a CPU, the searches begin with plain loops, so that the strategies have more to
find. The result is a Markdown table:

- the best kernel after a number of verdicts, relative to the best in the table: the median over the seeds, quartiles
- the ratio to ``beam`` at the same seed: the median, its 95% bootstrap interval, and how many seeds were better, equal
within 1%, or worse
- the verdicts until a kernel within 5% of the best in the table, and how many seeds found such a kernel
- known: the share of kernels that were in the table; full: how many seeds used all verdicts
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gzip
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.templates import as_list, relative_error  # noqa: E402
from engine.devices.fact import DeviceFact  # noqa: E402
from engine.devices.hardware import cpu_fact  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.inspection import inspect_file  # noqa: E402
from engine.problem.spec import LANGUAGE_OF_DEVICE, ProblemSpec  # noqa: E402
from engine.proposers.playbook import Playbook  # noqa: E402
from engine.proposers.playbook.playbook import TUNED  # noqa: E402
from engine.proposers.protocol import Board, Demands, IdeaDraft, Kernel, Task, TriedIdea, VariantDraft  # noqa: E402
from engine.search.ids import seed_for  # noqa: E402
from engine.search.proposing.proposer_context import share_out  # noqa: E402
from engine.search.strategies import STRATEGIES, Candidate  # noqa: E402
from engine.session.records.verdict import Timing, Verdict  # noqa: E402

PROBLEMS = {
    "cuda": {name: f"headline/{name}" for name in ("softmax", "layernorm", "matmul_fp32", "conv2d")},
    "cpu": {name: f"quickstart/{name}" for name in ("softmax", "layernorm", "matmul", "conv2d_relu_maxpool")},
}
"""Problems by kind of device, with their files. On two CPU cores, good kernels take 0.3 to 3 ms."""
COMPILERS = {
    "cuda": ("nvcc", "-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_90a,code=sm_90a"),
    "cpu": (
        *("g++", "-O3", "-std=c++20", "-march=native", "-fopenmp", "-ffp-contract=fast", "-fno-math-errno"),
        "-fPIC",
    ),
}
CALLS = 15
"""Number of timed calls per kernel, after three untimed calls."""
FLUSH_BYTES = {"cuda": 256 << 20, "cpu": 96 << 20}
"""Bytes to write before each call, so that the caches hold none of the call's data."""
LIMIT = 1e-2
"""Largest relative error of a correct kernel, in the Euclidean norm. Tolerance "crfm" has the same value."""
IDEAS, VARIANTS, PARENTS = 3, 3, 2
"""Ideas per round, kernels per idea and parents per round: the defaults of the config."""
TIED = 1.01
"""Largest ratio of two times that count as equal."""
EMPTY_ROUNDS = 5
"""Number of rounds in a row without a recorded kernel after which a search ends."""
HANG_S = 60.0
"""Seconds after which a kernel counts as hung if its measurement has not finished. For the first kernel of a process,
the limit also covers the float64 reference.
"""
CHILD = (sys.executable, __file__, "child")
SAVED_EVERY_S = 20.0
H200 = DeviceFact("gpu0", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132)

Measure = Callable[[str, VariantDraft], Awaitable[float | None]]
"""A function that returns the time of a problem's kernel in ms; None if the kernel is wrong. It raises KeyError if the
kernel is unknown.
"""


def key_of(draft: VariantDraft) -> str:
    """Return the choices that determine the kernel, as text."""
    return json.dumps(draft.data["recipe"]["choices"], sort_keys=True)


class Table(Struct):
    """The recorded kernels of one problem: milliseconds by ``key_of``, None for a wrong kernel."""

    source: str
    device: DeviceFact
    versions: str
    kernels: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Table:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=cls)

    def save(self, path: Path) -> None:
        self.kernels = dict(sorted(self.kernels.items()))
        path.write_bytes(gzip.compress(msgspec.json.encode(self), 9, mtime=0))

    def spec(self, name: str) -> ProblemSpec:
        """Return the specification of the problem ``name``. Imports torch."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.py"
            path.write_text(self.source)
            found = inspect_file(path, name)
        assert isinstance(found, ProblemSpec), found
        return found


# --- a search without the engine ----------------------------------------------------------------------------------


class Search:
    """One problem's rounds with one strategy, as the engine runs them, but without runoffs and repairs.

    On a CPU, the search begins with plain loops. The playbook's tuned first kernels would leave few rounds in which
    strategies differ.
    """

    def __init__(
        self, name: str, spec: ProblemSpec, device: DeviceFact, strategy: str, seed: int, measure: Measure
    ) -> None:
        self.name, self.strategy, self.seed, self.measure = name, strategy, seed, measure
        self.language = LANGUAGE_OF_DEVICE[device.kind]
        header, demands = derive_header(spec, self.language), Demands(tolerance=LIMIT)
        self.task = Task(spec, header, self.language, device, None, None, None, demands)
        self.playbook = Playbook()
        self.kernels: dict[str, Kernel] = {}
        self.candidates: dict[str, Candidate] = {}
        self.tried: list[TriedIdea] = []
        self._skipped: tuple[TriedIdea, ...] = ()
        """The tuned first kernels, which the playbook treats as tried."""
        self.best: list[float] = []
        """The best time in ms after each verdict, infinite before the first correct kernel."""
        self.missing = 0

    async def run(self, verdicts: int) -> Search:
        """Search until ``verdicts`` kernels are judged, or until the playbook has no new idea."""
        parents: list[str | None] = [None]
        number = empty = 0
        firsts = await self._ideas(0, None, IDEAS)
        self._skipped = tuple(
            TriedIdea("", None, one.category, one.text, None, one.data)
            for one in firsts
            if one.data["move"].endswith(TUNED)
        )
        while len(self.best) < verdicts and parents and empty < EMPTY_ROUNDS:
            before = len(self.best)
            await self._round(number, parents, verdicts)
            empty = 0 if len(self.best) > before else empty + 1
            parents = list(await self._parents(number))
            number += 1
        return self

    def _board(self, number: int, parent: str | None) -> Board:
        lineage: tuple[str, ...] = (parent,) if parent is not None else ()
        return Board(number, (*self._skipped, *self.tried), tuple(self.kernels.values()), (), lineage)

    async def _ideas(self, number: int, parent: str | None, count: int) -> list[IdeaDraft]:
        kernel = self.kernels[parent] if parent is not None else None
        seed = seed_for(self.seed, self.name, number, parent or "", "playbook")
        return await self.playbook.ideas(self.task, kernel, self._board(number, parent), count, seed)

    async def _round(self, number: int, parents: list[str | None], verdicts: int) -> None:
        asked: list[tuple[str, str | None, IdeaDraft, list[VariantDraft]]] = []
        sources: set[str] = set()
        for (parent, _), count in share_out(IDEAS, parents, (1.0,)).items():
            for idea in await self._ideas(number, parent, count):
                name = f"i{len(self.tried) + len(asked)}"
                kernel = self.kernels[parent] if parent is not None else None
                seed = seed_for(self.seed, self.name, name)
                board = self._board(number, parent)
                written = self.playbook.variants(self.task, idea, kernel, board, range(VARIANTS), seed)
                fresh = [draft async for draft in written if draft.source not in sources]
                sources.update(draft.source for draft in fresh)
                asked.append((name, parent, idea, fresh))
        wanted = [draft for *_, drafts in asked for draft in drafts]
        found = await asyncio.gather(*(self.measure(self.name, one) for one in wanted), return_exceptions=True)
        times = dict(zip(map(key_of, wanted), found, strict=True))
        for name, parent, idea, drafts in asked:
            self._record(number, name, parent, idea, [(draft, times[key_of(draft)]) for draft in drafts], verdicts)

    def _record(
        self,
        number: int,
        name: str,
        parent: str | None,
        idea: IdeaDraft,
        judged: list[tuple[VariantDraft, float | BaseException | None]],
        verdicts: int,
    ) -> None:
        speedup: float | None = None
        for draft, ms in judged:
            if isinstance(ms, KeyError):
                self.missing += 1
            elif isinstance(ms, BaseException):
                raise ms
            elif len(self.best) < verdicts:
                variant = f"v{len(self.best)}"
                self.best.append(min(self.best[-1] if self.best else math.inf, ms or math.inf))
                own = None if ms is None else 1.0 / ms
                speedup = max((one for one in (speedup, own) if one is not None), default=None)
                timing = None if ms is None else Timing(ms, ms, ms, 15)
                verdict = Verdict(status="correct" if ms else "wrong", speedup=own, kernel=timing)
                self.kernels[variant] = Kernel(
                    variant, draft.source, self.language, verdict, "playbook", draft.data, idea.text
                )
                if ms is not None and own is not None:
                    known = self.candidates[parent] if parent is not None else None
                    categories = known.lineage_categories if known is not None else frozenset()
                    self.candidates[variant] = Candidate(
                        variant=variant,
                        idea=name,
                        round=number,
                        ms=ms,
                        speedup=own,
                        category=idea.category,
                        lineage_categories=categories | {idea.category},
                    )
        before = self.candidates[parent].speedup if parent is not None else None
        self.tried.append(TriedIdea(name, parent, idea.category, idea.text, speedup, idea.data, before))

    async def _parents(self, number: int) -> list[str]:
        """Select the next parents. Skip kernels for which the playbook has no new idea."""
        select = STRATEGIES[self.strategy]
        seed = seed_for(self.seed, self.name, "selection", number)
        candidates = dict(self.candidates)
        while True:
            chosen = select(list(candidates.values()), round_number=number, width=PARENTS, seed=seed).selected
            dry = [one.variant for one in chosen if not await self._ideas(number + 1, one.variant, 1)]
            if not dry:
                return [one.variant for one in chosen]
            for name in dry:
                del candidates[name]


# --- record -------------------------------------------------------------------------------------------------------


class Bench:
    """Build kernels in parallel and time them one at a time, in one process per problem."""

    def __init__(self, folder: Path, tables: dict[str, Table]) -> None:
        self.folder, self.tables = folder, tables
        self.specs = {name: table.spec(name) for name, table in tables.items()}
        self._pending: dict[tuple[str, str], asyncio.Task[float | None]] = {}
        self._cores = os.cpu_count() or 1
        self._builders = asyncio.Semaphore(self._cores)
        self._device = asyncio.Lock()
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self._build = Path(tempfile.mkdtemp(prefix="strategies-"))

    async def measure(self, problem: str, draft: VariantDraft) -> float | None:
        """Return a kernel's time, measured at most once."""
        key = key_of(draft)
        if key in self.tables[problem].kernels:
            return self.tables[problem].kernels[key]
        if (problem, key) not in self._pending:
            self._pending[problem, key] = asyncio.ensure_future(self._measure(problem, key, draft.source))
        return await self._pending[problem, key]

    async def _measure(self, problem: str, key: str, source: str) -> float | None:
        language = LANGUAGE_OF_DEVICE[self.tables[problem].device.kind]
        stem = self._build / f"{problem}_{len(self._pending)}"
        file, header = stem.with_suffix(f".{language}"), stem.with_suffix(".h")
        file.write_text(source)
        header.write_text(derive_header(self.specs[problem], language))
        command = [*COMPILERS[self.tables[problem].device.kind], "-shared", "-include", str(header), str(file)]
        async with self._builders:
            build = await asyncio.create_subprocess_exec(*command, "-o", f"{stem}.so", stdout=-1, stderr=-1)
            await build.communicate()
        ms = None
        if build.returncode == 0:
            async with self._device:
                ms = await self._alone(problem, f"{stem}.so", language == "cpp")
        self.tables[problem].kernels[key] = ms
        return ms

    async def _alone(self, problem: str, library: str, cores: bool) -> float | None:
        """Time a kernel. ``cores``: occupy all cores, so that no compiler runs at the same time."""
        count = self._cores if cores else 0
        for _ in range(count):
            await self._builders.acquire()
        try:
            return await self._timed(problem, library)
        finally:
            for _ in range(count):
                self._builders.release()

    async def _timed(self, problem: str, library: str) -> float | None:
        child = self._children.get(problem)
        if child is None:
            table = self._build / f"{problem}.gz"
            self.tables[problem].save(table)
            passive = {**os.environ, "OMP_WAIT_POLICY": "passive"}
            child = await asyncio.create_subprocess_exec(*CHILD, str(table), stdin=-1, stdout=-1, env=passive)
            self._children[problem] = child
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(f"{library}\n".encode())
            line = await asyncio.wait_for(child.stdout.readline(), HANG_S)
            return float(json.loads(line)["ms"])
        except (TimeoutError, ValueError, TypeError, ConnectionError):
            if child.returncode is None and child in self._children.values():
                child.kill()
            await child.wait()
            del self._children[problem]
            return None

    def save(self) -> None:
        """Write the tables."""
        for name, table in self.tables.items():
            table.save(self.folder / f"{name}.json.gz")

    def close(self) -> None:
        """End all processes and delete the builds."""
        for child in self._children.values():
            child.kill()
        shutil.rmtree(self._build)


def read_tables(folder: Path, device: DeviceFact, versions: str) -> dict[str, Table]:
    """Return the tables in ``folder``, and an empty table for each problem without a table there."""
    tables = {}
    for name, file in PROBLEMS[device.kind].items():
        path = folder / f"{name}.json.gz"
        source = (ROOT / "problems" / f"{file}.py").read_text()
        tables[name] = Table.load(path) if path.exists() else Table(source, device, versions)
    return tables


def versions_of(device: DeviceFact) -> str:
    """Return the versions of torch and of the compiler. Imports torch."""
    import torch

    command = [COMPILERS[device.kind][0], "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    compiler = next((line for line in printed if "release" in line), printed[0])
    return f"torch {torch.__version__}; {compiler}"


async def record(folder: Path, device: DeviceFact, seconds: float, verdicts: int, seeds: int) -> None:
    """Run searches of all strategies, seed after seed, until the time is used up, and write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    bench = Bench(folder, read_tables(folder, device, versions_of(device)))

    async def lane(problem: str, strategy: str) -> None:
        for seed in range(1, seeds + 1):
            await Search(problem, bench.specs[problem], device, strategy, seed, bench.measure).run(verdicts)
            await asyncio.sleep(0)  # A search of known kernels never waits, so let the other searches run.

    async def saving() -> None:
        while True:
            await asyncio.sleep(SAVED_EVERY_S)
            bench.save()

    lanes = [asyncio.ensure_future(lane(problem, strategy)) for problem in bench.specs for strategy in STRATEGIES]
    saver = asyncio.ensure_future(saving())
    done, _ = await asyncio.wait(lanes, timeout=end - time.monotonic(), return_when=asyncio.FIRST_EXCEPTION)
    for one in (saver, *lanes):
        one.cancel()
    await asyncio.gather(saver, *lanes, return_exceptions=True)
    bench.close()
    bench.save()
    for name, table in bench.tables.items():
        right = [ms for ms in table.kernels.values() if ms is not None]
        print(f"{name}: {len(table.kernels)} kernels, {len(right)} correct, best {min(right, default=math.nan):.4f} ms")
    for one in done:
        one.result()


def child(path: Path) -> None:
    """Check and time the libraries named on standard input. Print a line of JSON for each library."""
    import torch

    table = Table.load(path)
    cuda, spec = table.device.kind == "cuda", table.spec(path.stem)
    kind = "cuda" if cuda else "cpu"
    space: dict[str, Any] = {}
    exec(compile(table.source, str(path), "exec"), space)
    torch.manual_seed(7)
    model = space["Model"](*(space["get_init_inputs"]() if "get_init_inputs" in space else [])).to(kind)
    inputs = [x.to(kind) for x in space["get_inputs"]()]
    with torch.no_grad():
        wanted = [one.float() for one in as_list(model.double()(*(x.double() for x in inputs)))]
        model.to(inputs[0].dtype)
        weights = [model.state_dict()[tensor.source_name] for tensor in spec.weights]
        outputs = [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=kind) for t in spec.outputs]
        flush = torch.empty(FLUSH_BYTES[kind], dtype=torch.uint8, device=kind)
        for line in sys.stdin:
            library = ctypes.CDLL(line.strip())
            scratch = 0
            if hasattr(library, "workspace_bytes"):
                library.workspace_bytes.restype = ctypes.c_size_t
                scratch = library.workspace_bytes()
            workspace = torch.full((max(1, scratch),), 0xA5, dtype=torch.uint8, device=kind)
            pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*inputs, *weights, *outputs, workspace)]
            if cuda:
                pointers.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

            def once(number: int, library: Any = library, pointers: list[Any] = pointers) -> tuple[int, float]:
                flush.fill_(number)
                for out in outputs:
                    out.fill_(math.nan)
                if not cuda:
                    began = time.perf_counter()
                    code = library.launch(*pointers)
                    return code, (time.perf_counter() - began) * 1000
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                code = library.launch(*pointers)
                end.record()
                end.synchronize()
                return code, float(start.elapsed_time(end))

            calls = [once(number) for number in range(3 + CALLS)]
            times = [ms for _, ms in calls[3:]]
            found = statistics.median(times) if cuda else min(times)
            error = relative_error([one.float() for one in outputs], wanted)
            ms = found if not any(code for code, _ in calls) and error <= LIMIT else None
            print(json.dumps({"ms": ms, "error": error}), flush=True)


# --- compare ------------------------------------------------------------------------------------------------------


async def compare(folder: Path, verdicts: int, seeds: int) -> None:
    """Repeat searches on the tables and print one Markdown table."""
    paths = sorted(folder.glob("*.json.gz"))
    if not paths:
        raise SystemExit(f"{folder} has no tables (*.json.gz); write them with: {Path(__file__).name} record {folder}")
    print(
        f"| problem | strategy | best after {verdicts} verdicts / best known | against beam | "
        "seeds better, equal, worse | verdicts to 5% | known | full |"
    )
    print("|---|---|---|---|---|---|---|---|")
    everywhere: dict[str, list[list[float]]] = {strategy: [] for strategy in STRATEGIES}
    for path in paths:
        name, table = path.name.removesuffix(".json.gz"), Table.load(path)
        spec, best = table.spec(name), min(ms for ms in table.kernels.values() if ms is not None)

        async def look_up(problem: str, draft: VariantDraft, table: Table = table) -> float | None:
            return table.kernels[key_of(draft)]

        ends: dict[str, list[float]] = {}
        for strategy in STRATEGIES:
            searches = [
                await Search(name, spec, table.device, strategy, seed, look_up).run(verdicts)
                for seed in range(1, seeds + 1)
            ]
            ends[strategy] = [one.best[-1] / best for one in searches]
            first = [next((k for k, ms in enumerate(one.best, 1) if ms <= 1.05 * best), None) for one in searches]
            reached = [k for k in first if k is not None]
            asked = sum(len(one.best) + one.missing for one in searches)
            known = sum(len(one.best) for one in searches) / asked
            full = sum(len(one.best) == verdicts for one in searches)
            until = f"{statistics.median(reached):.0f} ({len(reached)} of {seeds})" if reached else f"0 of {seeds}"
            everywhere[strategy].append(ends[strategy])
            cells = [*_cells(strategy, ends[strategy], ends["beam"]), until, f"{known:.0%}", f"{full} of {seeds}"]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = {
        strategy: [statistics.geometric_mean(one) for one in zip(*found, strict=True)]
        for strategy, found in everywhere.items()
    }
    for strategy, found in means.items():
        print(f"| geometric mean | {' | '.join(_cells(strategy, found, means['beam']))} | | | |")


def _cells(strategy: str, own: list[float], beam: list[float]) -> list[str]:
    """Return the strategy's name, its median with quartiles, its ratio to ``beam``, and its wins and losses."""
    low, middle, high = statistics.quantiles(own, n=4, method="inclusive")
    cells = [strategy, f"{middle:.3f} [{low:.3f}, {high:.3f}]"]
    if strategy == "beam":
        return [*cells, "", ""]
    pairs = list(zip(own, beam, strict=True))
    better = sum(one < other / TIED for one, other in pairs)
    worse = sum(one > other * TIED for one, other in pairs)
    return [*cells, _against(own, beam), f"{better}, {len(pairs) - better - worse}, {worse}"]


def _against(own: list[float], beam: list[float]) -> str:
    """Return the median ratio of paired seeds with its 95% bootstrap interval."""
    ratios = [one / other for one, other in zip(own, beam, strict=True)]
    rng = random.Random(1)
    drawn = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.3f} [{drawn[50]:.3f}, {drawn[1949]:.3f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("record", "compare", "child"))
    parser.add_argument("folder", help="the folder of the tables")
    parser.add_argument("--seconds", type=float, default=240.0, help="time for recording")
    parser.add_argument("--device", choices=tuple(PROBLEMS), default="cuda", help="the device for recording")
    parser.add_argument("--verdicts", type=int, default=40, help="verdicts per search")
    parser.add_argument("--seeds", type=int, default=20, help="number of searches per problem and strategy")
    arguments = parser.parse_args()
    if arguments.stage == "record":
        device = H200 if arguments.device == "cuda" else cpu_fact()
        asyncio.run(record(Path(arguments.folder), device, arguments.seconds, arguments.verdicts, arguments.seeds))
    elif arguments.stage == "compare":
        asyncio.run(compare(Path(arguments.folder), arguments.verdicts, arguments.seeds))
    else:
        child(Path(arguments.folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
