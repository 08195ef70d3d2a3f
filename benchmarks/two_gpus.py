"""Compare two GPUs of one machine with one GPU: as workers of a cluster, as local devices, and in a search.

    python benchmarks/two_gpus.py all STATE                # eight minutes at most; all parts in order of importance
    python benchmarks/two_gpus.py all STATE --device cpu   # rehearse the script: a worker has a core instead of a GPU
    python benchmarks/two_gpus.py all STATE --parts prepare local1 search1   # on a machine with one GPU
    python benchmarks/two_gpus.py table STATE              # print the table again

- ``prepare`` draws distinct playbook kernels of two problems (``PROBLEMS``), the same ones in every run. It builds them
  into a build cache in ``STATE``, so later parts build nothing, unlike a search.
- ``workers1`` and ``workers2`` judge these kernels through the transport of a cluster, with mutual TLS: ``kernel-tui
  cluster scheduler``, and one ``kernel-tui worker`` for each GPU.
- ``local1`` and ``local2`` judge them with the evaluator of a search on this machine, on one GPU and on both.
- ``transport`` is ``benchmarks/cluster.py --against-local``: the extra milliseconds of a worker's evaluation.
- ``search1`` and ``search2`` run ``init --preset headline`` on one GPU and on both, for ``--minutes``. Each search
  starts with an empty build cache, so its time includes builds, openings, rounds and runoffs. The searches do not
  time torch.compile and do not judge the winners at other sizes, because both take longer than the budget.
- ``clustered1`` and ``clustered2`` run the same searches with ``[cluster]`` on one worker and on two. These parts run
  only if a call has time left, or in a second call.

Before the clock starts, each judge opens both problems. A part then judges with a few evaluations in flight per GPU,
and stops after ``--judge-seconds``. The parts for two GPUs judge exactly the kernels that the part for one GPU judged.
The rate is the number of verdicts divided by the time from the first request to the last verdict. This time includes
the end, when one GPU has no kernel left. "busy" is the share of this time in which the GPUs were judging. The table
compares kernel times and statuses, kernel by kernel, with those of ``local1``, or of ``workers1`` if ``local1`` did not
run. The rows for each GPU show whether a difference comes from the GPUs or from the transports.

Each part is a process with its own time limit (LIMITS_S), and stores its result immediately. A part that hangs or fails
does not affect the others; the table shows what happened to it. A second call skips stored parts, so the same command
continues after an interruption. No part needs an installed ``kernel-tui``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import msgspec  # noqa: E402
import psutil  # noqa: E402
from msgspec import Struct, field  # noqa: E402

from benchmarks.headline import Clock, kernel_tui, read_json, session_of, with_key, write_json  # noqa: E402
from engine.cluster.worker.toolchain import compiler_version  # noqa: E402
from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.devices.fact import DeviceFact  # noqa: E402
from engine.devices.hardware import discover  # noqa: E402
from engine.evaluation.build.compilers import NoCompiler, compiler_of  # noqa: E402
from engine.evaluation.evaluator import Evaluator  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import inspect_files, resolve  # noqa: E402
from engine.problem.spec import LANGUAGE_OF_DEVICE, Language, ProblemSpec  # noqa: E402
from engine.session.records.events import BaselineMeasured, EngineStarted, EngineStopped, VerdictGiven  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402
from engine.session.store import SessionReader  # noqa: E402

PROBLEMS = {"cuda": ("headline/layernorm", "headline/conv2d"), "cpu": ("quickstart/layernorm", "quickstart/softmax")}
PRESETS = {"cuda": "headline", "cpu": "quickstart"}
PARTS = (
    *("prepare", "workers1", "workers2", "local1", "local2", "transport", "search1", "search2"),
    *("clustered1", "clustered2"),
)
LIMITS_S = {
    "prepare": 100.0,
    "workers1": 110.0,
    "workers2": 85.0,
    "local1": 95.0,
    "local2": 75.0,
    "transport": 75.0,
    "search1": 120.0,
    "search2": 120.0,
    "clustered1": 125.0,
    "clustered2": 125.0,
}
"""Seconds after which the script ends a part. A part that works as expected takes about half of this time."""
EXPECTED_S = {
    "prepare": 30.0,
    "workers1": 60.0,
    "workers2": 40.0,
    "local1": 55.0,
    "local2": 35.0,
    "transport": 30.0,
    "search1": 80.0,
    "search2": 80.0,
    "clustered1": 85.0,
    "clustered2": 85.0,
}
"""Expected seconds on an H100 with 32 cores. A part starts only if this much of ``--seconds`` is left."""
IN_FLIGHT = 4
"""Number of evaluations in flight per GPU: one runs on the GPU, and the others are ready when it ends."""
WARM_TRIES = 6
"""Maximum number of attempts to open a problem on every GPU."""
NEEDED_WORKERS, NEEDED_LOCAL = 1.85, 1.9
"""Minimum ratio of the verdict rate of two GPUs to that of one GPU."""
NEEDED_EXTRA_MS = 20.0
"""Maximum median extra time of a worker's evaluation, in milliseconds."""
NEEDED_RATIO = 0.02
"""Maximum deviation of the median ratio of kernel times from 1."""
JUDGING = ("start", "check", "timing", "kernelbench", "repeats")
"""Stages of a verdict that occupy the GPU."""


class Kernel(Struct):
    """A kernel to judge. ``name``: the kernel's problem and a digest of the source."""

    name: str
    problem: str
    source: str


class Prepared(Struct):
    """The kernels and specifications that all parts share. ``warm``: kernels that only open the problems; they are not
    among ``kernels``.
    """

    specs: dict[str, ProblemSpec]
    language: Language
    kernels: list[Kernel]
    warm: list[Kernel]
    device: str


class Judged(Struct):
    """One kernel's result. ``device``: the GPU's id, or "" if unknown. ``judged_s``: seconds on the GPU, which
    ``stages`` breaks down.
    """

    status: str
    reason: str
    ms: float | None
    speedup: float | None
    device: str
    build_s: float
    judged_s: float
    flags: tuple[str, ...] = ()
    stages: dict[str, float] = {}


class Run(Struct):
    """A part's result. ``seconds``: from the first request to the last verdict. ``cpu``: share of all cores used."""

    devices: list[str]
    ready_s: float
    seconds: float
    cpu: float
    results: dict[str, Judged] = field(default_factory=dict)


Keep = Callable[[Run], None]
"""Store the result of a part."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("all", "table", *PARTS))
    parser.add_argument("state", type=Path, help="the folder for results, builds and sessions")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=480.0, help="time limit of all parts together")
    parser.add_argument("--judge-seconds", type=float, default=40.0, help="judging time of the parts for one GPU")
    parser.add_argument("--kernels", type=int, default=60, help="maximum number of kernels of each problem")
    parser.add_argument("--minutes", type=float, default=1.0, help="time budget of each search")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="parts to run with `all`")
    arguments = parser.parse_args()
    arguments.state = arguments.state.resolve()
    arguments.state.mkdir(parents=True, exist_ok=True)
    if arguments.step == "table":
        print_table(arguments.state)
        return 0
    if arguments.step != "all":
        os.environ["XDG_CACHE_HOME"] = str(arguments.state / "cache")
        run_part(arguments.step, arguments)
        return 0
    both = any(part.endswith("2") for part in arguments.parts)
    if arguments.device == "cuda" and both and (lack := why_not_two()):
        sys.exit(lack)
    clock = Clock(arguments.seconds)
    for part in arguments.parts:
        if not (arguments.state / f"{part}.json").exists() and clock.has(EXPECTED_S[part], part):
            in_process(part, arguments, clock)
            print_table(arguments.state)
    return 0


def why_not_two() -> str:
    """Return the reason why this machine cannot compare two GPUs; "" if it can."""
    gpus = [device for device in discover() if device.kind == "cuda"]
    if len(gpus) < 2:
        return f"the comparison needs two NVIDIA GPUs, but this process sees {len(gpus)}; check with: nvidia-smi -L"
    if gpus[0].name != gpus[1].name:
        return (
            f"the GPUs differ ({gpus[0].name}, {gpus[1].name}); set CUDA_VISIBLE_DEVICES to two GPUs of the same model"
        )
    return ""


def in_process(part: str, arguments: argparse.Namespace, clock: Clock) -> None:
    """Run a part in a separate process, and end the process and its children at the part's time limit."""
    options = ("--device", arguments.device, "--kernels", arguments.kernels, "--minutes", arguments.minutes)
    command = [sys.executable, __file__, part, arguments.state, *options, "--judge-seconds", arguments.judge_seconds]
    log, began = arguments.state / f"{part}.log", time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, command)), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(LIMITS_S[part])
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_all(process)
    took = time.monotonic() - began
    print(f"{part}: {took:.0f} s", flush=True)
    if code != 0 or not (arguments.state / f"{part}.json").exists():
        how = f"did not end within {LIMITS_S[part]:.0f} s" if code is None else f"ended with exit code {code}"
        (arguments.state / f"{part}.failed").write_text(how)
        print(f"{part} {how}; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}", flush=True)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a part's process and every process that it started, even processes with their own process sessions."""
    found = []
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in found:
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait()
    psutil.wait_procs(found, timeout=10)


def run_part(part: str, arguments: argparse.Namespace) -> None:
    state: Path = arguments.state
    count = 2 if part.endswith("2") else 1
    if part == "prepare":
        write_json(state / "prepare.json", asyncio.run(prepare(arguments)))
    elif part == "transport":
        write_json(state / "transport.json", transport(arguments))
    elif part.startswith("search"):
        write_json(state / f"{part}.json", search(state / part, count, arguments))
    elif part.startswith("clustered"):
        with joined(count, arguments.device == "cuda") as (address, certificates, _):
            cluster = {"scheduler": address, "certificates": str(certificates)}
            write_json(state / f"{part}.json", search(state / part, count, arguments, cluster))
    else:
        prepared = msgspec.json.decode((state / "prepare.json").read_bytes(), type=Prepared)
        if count == 2 and (first := read_run(state / f"{part[:-1]}1.json")) is not None:
            prepared.kernels = [kernel for kernel in prepared.kernels if kernel.name in first.results]
        judge = through_workers if part.startswith("workers") else locally
        # Each judge stores its results before it ends the workers, which might hang.
        keep = partial(write_json, state / f"{part}.json")
        asyncio.run(judge(prepared, count, arguments.judge_seconds, keep))


# --- prepare ------------------------------------------------------------------------------------------------------


async def prepare(arguments: argparse.Namespace) -> Prepared:
    """Draw the kernels, and build them with all cores."""
    device = first_device(arguments.device)
    language = LANGUAGE_OF_DEVICE[device.kind]
    specs: dict[str, ProblemSpec] = {}
    kernels: list[Kernel] = []
    warm: list[Kernel] = []
    for name in PROBLEMS[device.kind]:
        (spec,) = await inspect_files(resolve((f"builtin:{name}",), ROOT))
        if not isinstance(spec, ProblemSpec):
            sys.exit(str(spec))
        specs[spec.id] = spec
        drawn = await draw(spec, device, arguments.kernels + 2 * WARM_TRIES)
        warm += drawn[: 2 * WARM_TRIES]
        kernels += drawn[2 * WARM_TRIES :]
    random.Random(1).shuffle(kernels)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        cores = len(os.sched_getaffinity(0))
        config = EvaluationConfig(device=device.kind, builders=cores)
        evaluator = LocalEvaluator(config, Path(scratch))
        try:
            await evaluator.start()

            async def build(kernel: Kernel) -> float:
                spec = specs[kernel.problem]
                header = derive_header(spec, language)
                report = await evaluator.build(spec, header, language, kernel.source)
                if not report.ok:
                    print(f"{kernel.name} does not build: {report.log[-300:]}", flush=True)
                return report.seconds

            seconds = await asyncio.gather(*map(build, (*kernels, *warm)))
        finally:
            await evaluator.close()
    print(f"built {len(seconds)} kernels in {time.monotonic() - began:.0f} s, each {statistics.median(seconds):.1f} s")
    return Prepared(specs, language, kernels, warm, device.name)


def first_device(kind: str) -> DeviceFact:
    return next(device for device in discover() if device.kind == kind)


async def draw(spec: ProblemSpec, device: DeviceFact, count: int) -> list[Kernel]:
    """Return up to ``count`` distinct kernels of the playbook, from searches whose kernels have made-up times."""
    from benchmarks.strategies import Search, key_of
    from engine.proposers.protocol import VariantDraft

    found: dict[str, Kernel] = {}

    async def made_up(_: str, draft: VariantDraft) -> float:
        digest = hashlib.sha256(key_of(draft).encode()).hexdigest()
        found.setdefault(draft.source, Kernel(f"{spec.id}-{digest[:8]}", spec.id, draft.source))
        return 1.0 + int(digest[:8], 16) / 2**32

    for seed in range(20):
        await Search(spec.id, spec, device, "random", seed, made_up).run(40)
        if len(found) >= count:
            break
    return list(found.values())[:count]


# --- judge --------------------------------------------------------------------------------------------------------


async def locally(prepared: Prepared, count: int, limit_s: float, keep: Keep) -> None:
    """Judge with the evaluator of a search on this machine."""
    began = time.monotonic()
    cuda = prepared.language == "cu"
    device = ("cuda:0", "cuda:1")[:count] if cuda else "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = LocalEvaluator(evaluation(device), Path(scratch))
        try:
            devices = [one.id for one in await evaluator.start()]

            def opened() -> list[list[str]]:
                return [list(judge.kept) for judge in evaluator._judges]

            await warm_up(evaluator, prepared, opened)
            keep(await judge_all(evaluator, prepared, devices, time.monotonic() - began, limit_s))
        finally:
            await evaluator.close()


async def through_workers(prepared: Prepared, count: int, limit_s: float, keep: Keep) -> None:
    """Judge with ``count`` workers on this machine, each for one GPU."""
    from benchmarks import cluster

    began = time.monotonic()
    cuda = prepared.language == "cu"
    with joined(count, cuda) as (address, certificates, workers):
        evaluator = cluster.evaluator(address, certificates, evaluation("cuda" if cuda else "cpu"))
        try:
            await evaluator.start()
            while len(evaluator._roster.usable()) < count:
                for worker in workers:
                    if worker.poll() is not None:
                        sys.exit(f"a worker ended with exit code {worker.returncode}; see its message above")
                await asyncio.sleep(0.2)
            found = evaluator._roster.devices
            devices = [device.id for device in found.values()]

            def opened() -> list[list[str]]:
                return [list(device.kept) for device in found.values()]

            await warm_up(evaluator, prepared, opened)
            keep(await judge_all(evaluator, prepared, devices, time.monotonic() - began, limit_s))
        finally:
            await evaluator.close()


@contextlib.contextmanager
def joined(count: int, cuda: bool) -> Iterator[tuple[str, Path, list[subprocess.Popen[str]]]]:
    """Start a scheduler and ``count`` workers on this machine. Yield the address, the certificates and the workers."""
    from benchmarks import cluster
    from engine.cluster.certificates import create

    builders = str(max(1, len(os.sched_getaffinity(0)) // 4))
    with tempfile.TemporaryDirectory() as scratch:
        certificates = Path(scratch) / "certs"
        create(certificates, ["127.0.0.1"])
        scheduler, address = cluster.start_scheduler(certificates)
        workers = []
        for number in range(count):
            with contextlib.nullcontext() if cuda else own_core(number, Path(scratch)):
                worker = cluster.start(
                    *("-m", "tui.cli.main", "worker", "--scheduler", address, "--certificates", str(certificates)),
                    *("--gpus", str(number) if cuda else "none", "--name", f"gpu{number}", "--builders", builders),
                )
            workers.append(worker)
        try:
            yield address, certificates, workers
        finally:
            for process in (*workers, scheduler):
                process.terminate()
            for process in (*workers, scheduler):
                process.wait(20)


@contextlib.contextmanager
def own_core(number: int, scratch: Path) -> Iterator[None]:
    """Let a core stand in for a GPU: processes that start in the block use this core and have their own lock files."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    os.environ["TMPDIR"] = str(scratch / f"core{number}")
    Path(os.environ["TMPDIR"]).mkdir()
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        del os.environ["TMPDIR"]


def evaluation(device: str | tuple[str, ...]) -> EvaluationConfig:
    return EvaluationConfig(device=device, torch_compile=False, tolerance="crfm")


async def warm_up(evaluator: Evaluator, prepared: Prepared, opened: Callable[[], list[list[str]]]) -> None:
    """Open every problem on every GPU, and judge a kernel there."""
    for name, spec in prepared.specs.items():
        await evaluator.open(spec, derive_header(spec, prepared.language))
        spare = deque(kernel for kernel in prepared.warm if kernel.problem == name)
        for _ in range(WARM_TRIES):
            together = [spare.popleft() for _ in opened()]
            await asyncio.gather(*(judge(evaluator, prepared, kernel) for kernel in together))
            if all(name in problems for problems in opened()):
                break
        else:
            print(f"not every GPU opened {name} in {WARM_TRIES} attempts: {opened()}", flush=True)


async def judge(evaluator: Evaluator, prepared: Prepared, kernel: Kernel) -> Verdict:
    spec = prepared.specs[kernel.problem]
    return await evaluator.evaluate(spec, prepared.language, kernel.source, lambda stage: None)


async def judge_all(
    evaluator: Evaluator, prepared: Prepared, devices: list[str], ready_s: float, limit_s: float
) -> Run:
    """Judge the kernels with a few evaluations in flight per device. Start no evaluation after ``limit_s`` seconds."""
    kernels, results = deque(prepared.kernels), dict[str, Judged]()
    psutil.cpu_percent()
    began = last = time.monotonic()

    async def lane() -> None:
        nonlocal last
        while kernels and time.monotonic() - began < limit_s:
            kernel = kernels.popleft()
            results[kernel.name] = result_of(await judge(evaluator, prepared, kernel))
            last = time.monotonic()

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT * len(devices))))
    return Run(devices, ready_s, last - began, psutil.cpu_percent() / 100, results)


def result_of(verdict: Verdict) -> Judged:
    spent = verdict.stage_s
    return Judged(
        verdict.status,
        verdict.reason,
        verdict.kernel.median_ms if verdict.kernel is not None else None,
        verdict.speedup,
        verdict.device_id,
        spent.get("build", 0.0),
        sum(spent.get(stage, 0.0) for stage in JUDGING),
        verdict.flags,
        {stage: spent[stage] for stage in JUDGING if stage in spent},
    )


# --- transport and search -----------------------------------------------------------------------------------------


def transport(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run ``benchmarks/cluster.py --against-local`` on one GPU, and return the figures that it prints."""
    language = LANGUAGE_OF_DEVICE["cuda" if arguments.device == "cuda" else "cpu"]
    command = [sys.executable, str(ROOT / "benchmarks" / "cluster.py"), "--against-local", "--language", language]
    environment = dict(os.environ)
    if arguments.device == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = first_device("cuda").id
    done = subprocess.run([*command, "--kernels", "12"], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    found = re.search(r"median extra time per evaluation: (-?[\d.]+) ms", done.stdout)
    assert found is not None, "benchmarks/cluster.py printed no extra time"
    return {"extra_ms": float(found[1]), "printed": done.stdout.splitlines()}


def search(
    folder: Path, count: int, arguments: argparse.Namespace, cluster: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a search of the preset on ``count`` GPUs, or on the workers of ``cluster``. Count the search's verdicts
    within the budget.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    config = folder / "config.toml"
    kernel_tui("init", "--preset", PRESETS[arguments.device], "--force", config, folder=folder)
    devices = [f"cuda:{number}" for number in range(count)] if arguments.device == "cuda" else ["cpu"]
    text = with_key(config.read_text(), "seed", 0)
    text = with_key(text, "minutes", arguments.minutes, "budget")
    text = with_key(text, "device", devices if cluster is None else arguments.device, "evaluation")
    text = with_key(text, "torch_compile", False, "evaluation")
    text = with_key(text, "other_sizes", False, "evaluation")
    if cluster is not None:
        text += "\n[cluster]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in cluster.items())
    config.write_text(text)
    ended = kernel_tui("run", config, "--headless", "--new", folder=folder)
    paths = session_of(folder)
    if paths is None or ended.returncode:
        sys.exit(f"the search ended with exit code {ended.returncode}; see its message above")
    with SessionReader(paths) as reader:
        events = list(reader.read())
    started = next(one.time for one in events if isinstance(one.event, EngineStarted))
    until = min([started + 60 * arguments.minutes, *(e.time for e in events if isinstance(e.event, EngineStopped))])
    verdicts = [
        (one.time, one.event.verdict)
        for one in events
        if isinstance(one.event, VerdictGiven) and one.event.verdict.same_code_as is None and one.time <= until
    ]
    opened = [one.time for one in events if isinstance(one.event, BaselineMeasured) and one.time <= until]
    all_open = max(opened, default=until)
    steady = sum(when > all_open for when, _ in verdicts)
    return {
        "verdicts": len(verdicts),
        "seconds": until - started,
        "first_s": min((when for when, _ in verdicts), default=until) - started,
        "opened_s": all_open - started,
        "rate": 60 * steady / (until - all_open) if until > all_open else 0.0,
        "judged_s": sum(sum(one.stage_s.get(stage, 0.0) for stage in JUDGING) for _, one in verdicts),
        "statuses": Counter(one.status for _, one in verdicts),
        "gpus": len(devices),
    }


# --- table --------------------------------------------------------------------------------------------------------


def read_run(path: Path) -> Run | None:
    return msgspec.json.decode(path.read_bytes(), type=Run) if path.exists() else None


def print_table(state: Path) -> None:
    """Print the results of the finished parts as Markdown."""
    prepared = read_json(state / "prepare.json")
    runs = {part: read_run(state / f"{part}.json") for part in ("workers1", "workers2", "local1", "local2")}
    device = prepared["device"] if prepared is not None else "unknown device"
    print(f"\n## Two GPUs against one: {device}, {os.cpu_count()} cores, {versions()}\n")
    print("| line | one GPU | two GPUs | ratio | needed |")
    print("|---|---|---|---|---|")
    for words, part, needed in (("two workers", "workers", NEEDED_WORKERS), ("local", "local", NEEDED_LOCAL)):
        one, two = runs[f"{part}1"], runs[f"{part}2"]
        ratio = rate(two) / rate(one) if one is not None and two is not None else None
        print(f"| {words}, verdicts per minute | {rate_cell(one)} | {rate_cell(two)} | {times(ratio)} | "
              f"{goal(ratio, needed)} |")  # fmt: skip
    for words, part in (("search", "search"), ("search through workers", "clustered")):
        searches = [read_json(state / f"{part}{count}.json") for count in (1, 2)]
        needed = NEEDED_LOCAL if part == "search" else NEEDED_WORKERS
        for what, key in (("verdicts", "verdicts"), ("verdicts per minute once all problems are open", "rate")):
            found = [one[key] if one is not None else None for one in searches]
            ratio = found[1] / found[0] if found[0] and found[1] is not None else None
            cells = [search_cell(one, key) for one in searches]
            print(f"| {words}, {what} | {cells[0]} | {cells[1]} | {times(ratio)} | {goal(ratio, needed)} |")
    if (measured := read_json(state / "transport.json")) is not None:
        met = "met" if measured["extra_ms"] <= NEEDED_EXTRA_MS else "not met"
        print(f"| a worker's extra ms per evaluation, median | {measured['extra_ms']:.1f} | | | "
              f"{NEEDED_EXTRA_MS:g} ({met}) |")  # fmt: skip
    base = "local1" if runs["local1"] is not None else "workers1"
    if (before := runs[base]) is not None:
        for part, run in runs.items():
            if run is not None and part != base:
                print("\n".join(comparison(part, run, base, before)))
    for part in PARTS:
        if (path := state / f"{part}.failed").exists() and not (state / f"{part}.json").exists():
            print(f"\n{part} {path.read_text()}; see {part}.log")
    print(flush=True)


def rate(run: Run) -> float:
    """Return the verdicts per minute."""
    return 60 * len(run.results) / run.seconds


def rate_cell(run: Run | None) -> str:
    if run is None:
        return "-"
    busy = sum(one.judged_s for one in run.results.values()) / (run.seconds * len(run.devices))
    built = sum(one.build_s > 0 for one in run.results.values())
    extra = f", {built} built again" if built else ""
    parts = ", ".join(f"{stage} {mean_ms(run, stage):.0f}" for stage in JUDGING)
    return (
        f"{rate(run):.1f} ({len(run.results)} in {run.seconds:.1f} s, busy {busy:.0%}, cores {run.cpu:.0%}, "
        f"ready after {run.ready_s:.0f} s{extra}; mean ms: {parts})"
    )


def mean_ms(run: Run, stage: str) -> float:
    return statistics.fmean(1e3 * one.stages.get(stage, 0.0) for one in run.results.values())


def search_cell(found: dict[str, Any] | None, key: str) -> str:
    if found is None:
        return "-"
    if key == "rate":
        return f"{found['rate']:.1f}"
    busy = found["judged_s"] / (found["seconds"] * found["gpus"])
    return (
        f"{found['verdicts']} in {found['seconds']:.0f} s (first after {found['first_s']:.0f} s, all problems open "
        f"after {found['opened_s']:.0f} s, busy {busy:.0%})"
    )


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def goal(ratio: float | None, needed: float) -> str:
    return f"{needed:g}" + ("" if ratio is None else " (met)" if ratio >= needed else " (not met)")


def comparison(part: str, run: Run, base: str, base_run: Run) -> Iterator[str]:
    """Yield rows that compare a part's statuses and kernel times with those of part ``base``, over all GPUs and for
    each GPU.
    """
    both = [(name, base_run.results[name], one) for name, one in run.results.items() if name in base_run.results]
    same = sum(before.status == one.status for _, before, one in both)
    correct = sum(before.status == "correct" for _, before, _ in both)
    words = "" if same == len(both) else "not "
    yield f"| {part}: statuses as in {base} ({correct} correct) | | {same} of {len(both)} | | all ({words}met) |"
    ratios = [(one.device, one.ms / before.ms) for _, before, one in both if one.ms and before.ms]
    if ratios:
        every = [ratio for _, ratio in ratios]
        met = "met" if abs(statistics.median(every) - 1) <= NEEDED_RATIO else "not met"
        yield f"| {part}: kernel time / time in {base} | | {spread(every)} | | 1 +- {NEEDED_RATIO:g} ({met}) |"
    devices = sorted({device for device, _ in ratios if device})
    for device in devices if len(devices) > 1 else ():
        own = [ratio for where, ratio in ratios if where == device]
        yield f"| {part}: the same, only {device.partition('/')[0]} ({len(own)} kernels) | | {spread(own)} | | |"
    for name, before, one in both:
        if before.status != one.status:
            yield f"| {part}: {name} | {before.status} | {one.status}: {clean(one.reason or before.reason)} | | |"


def spread(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"median {statistics.median(ratios):.4f}, {low:.3f} to {high:.3f}"


def clean(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:160]


def versions() -> str:
    """Return the versions of Python, torch and nvcc, without importing torch."""
    from importlib import metadata

    found = [f"Python {platform.python_version()}"]
    for package in ("torch", "distributed"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    with contextlib.suppress(NoCompiler):
        found.append(compiler_version(compiler_of("cu")))
    return ", ".join(filter(None, found))


if __name__ == "__main__":
    raise SystemExit(main())
