"""Measure the transport overhead of a cluster, with simulated workers or with one real worker.

    .venv/bin/python benchmarks/cluster.py [--workers 32] [--rate 5] [--seconds 60]
    .venv/bin/python benchmarks/cluster.py --saturated [--workers 2] [--judge-ms 500] [--seconds 30]
    .venv/bin/python benchmarks/cluster.py --against-local [--kernels 20]

By default, the script starts a scheduler and simulated workers on this machine, with mutual TLS. A simulated worker
sleeps instead of building and judging, and answers with the verdict of a real evaluation, so messages have realistic
sizes. On the engine's side, the script runs the search's own evaluator. The script prints the processor time of the
engine and the scheduler. It also prints the time that the transport adds to an evaluation, and the sizes of the
messages.

With ``--saturated``, kernels are always waiting for a worker. The script prints the share of time that the simulated
workers spend judging, and how long a worker is idle between two kernels.

With ``--against-local``, the script judges the same kernels with the local evaluator and with one worker on this
machine, in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from benchmarks.evaluator import CPP, CU  # noqa: E402
from engine.cluster import dask_settings  # noqa: E402
from engine.cluster import messages as m  # noqa: E402
from engine.cluster.certificates import create, security  # noqa: E402
from engine.cluster.evaluator import ClusterEvaluator  # noqa: E402
from engine.cluster.worker.plugin import JudgingHost  # noqa: E402
from engine.config.schema import ClusterConfig, EvaluationConfig  # noqa: E402
from engine.devices.hardware import cpu_fact  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import inspect_files, resolve  # noqa: E402
from engine.problem.spec import Language, ProblemSpec  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402
from engine.system.python_process import python_path  # noqa: E402

BUILD_S, JUDGE_S = 1.0, (3.0, 5.0)
"""Durations in seconds of a simulated build, and of a simulated evaluation (shortest, longest)."""
PER_PROCESS = 8
SETTINGS = EvaluationConfig(trials=3, max_pairs=20, torch_compile=False)


def source(number: int, language: Language = "cpp") -> str:
    if language == "cu":
        return CU.format(exp="expf" if number % 2 else "__expf", threads=64 << number // 2 % 4) + f"// {number}\n"
    return CPP.format(exp="std::exp", chunk=number + 1)


class SleepingHost(JudgingHost):
    """A worker that sleeps instead of building and judging."""

    verdict: Verdict
    build_s = BUILD_S
    judge_s = JUDGE_S

    async def _asked(self, order: m.Order) -> m.AnyFinal:
        # Each heartbeat reads ``heard_at``, the time of the last sign of life from the judging process.
        self._of[order.attempt] = SimpleNamespace(heard_at=math.inf)  # type: ignore[assignment]
        try:
            match order.work:
                case m.Measure():
                    return m.Measured(4000.0, 9e5)
                case m.Build():
                    await asyncio.sleep(self.build_s)
                    assert self.verdict.build is not None
                    return m.Built(replace(self.verdict.build, seconds=self.build_s, code=order.attempt))
                case m.Judge():
                    seconds = random.uniform(*self.judge_s)
                    await asyncio.sleep(seconds)
                    return m.Judged(replace(self.verdict, stage_s={"judged": seconds}))
                case _:
                    return m.Done()
        finally:
            del self._of[order.attempt]


async def simulate_workers(
    address: str, certificates: Path, first: int, count: int, verdict: Verdict, judge_s: float
) -> None:
    """Run ``count`` simulated workers in this process until a signal ends it.

    ``judge_s``: seconds per evaluation, or 0 for ``JUDGE_S``.
    """
    from distributed import Worker

    dask_settings.apply()
    SleepingHost.verdict = verdict
    if judge_s:
        SleepingHost.judge_s, SleepingHost.build_s = (judge_s, judge_s), judge_s / 4
    workers = []
    for number in range(first, first + count):
        host = f"host{number}"
        device = replace(cpu_fact(), id=f"{host}/cpu", host=host)
        workers.append(
            await Worker(
                *(address,),
                nthreads=8,
                resources={m.DEVICE: 1, m.BUILDER: 2},
                security=security(certificates, "worker"),
                protocol="tls",
                name=host,
                plugins=[SleepingHost(device, "cpu", {}, 2, "", lambda: "", None)],
                dashboard=False,
                dashboard_address="127.0.0.1:0",
                memory_limit=0,
            )
        )
    await asyncio.Event().wait()


def start(*arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, **options)  # type: ignore[call-overload,no-any-return]


def start_scheduler(certificates: Path) -> tuple[subprocess.Popen[str], str]:
    process = start(
        *("-m", "tui.cli.main", "cluster", "scheduler", "--certificates", str(certificates)),
        *("--host", "127.0.0.1", "--port", "0"),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def evaluator(address: str, certificates: Path, settings: EvaluationConfig) -> ClusterEvaluator:
    cluster = ClusterConfig(scheduler=address, certificates=certificates)

    def say(text: str, is_warning: bool) -> None:
        if is_warning:
            print(text, file=sys.stderr)

    def ignore(*_: object) -> None:
        pass

    return ClusterEvaluator(
        cluster, settings, [], ignore, ignore, ignore, ignore, ignore, say, certificates / "unused", {}
    )


async def softmax(language: Language = "cpp") -> tuple[ProblemSpec, str]:
    name = "builtin:headline/softmax" if language == "cu" else "builtin:quickstart/softmax"
    (spec,) = await inspect_files(resolve((name,), ROOT))
    if not isinstance(spec, ProblemSpec):
        raise SystemExit(str(spec))
    return spec, derive_header(spec, language)


async def a_verdict(problem: ProblemSpec, header: str, scratch: Path) -> Verdict:
    """Judge one kernel on this machine, to get a verdict of realistic size."""
    local = LocalEvaluator(SETTINGS, scratch)
    try:
        await local.start()
        await local.open(problem, header)
        return await local.evaluate(problem, "cpp", source(0), lambda stage: None)
    finally:
        await local.close()


@contextlib.asynccontextmanager
async def simulated_cluster(
    workers: int, scratch: Path, judge_s: float = 0.0
) -> AsyncIterator[tuple[ClusterEvaluator, ProblemSpec, int]]:
    """Yield an evaluator with simulated workers, a problem, and the scheduler's PID."""
    import msgspec

    certificates = scratch / "certs"
    create(certificates, ["127.0.0.1"])
    problem, header = await softmax()
    verdict = await a_verdict(problem, header, scratch)
    (scratch / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    scheduler, address = start_scheduler(certificates)
    processes = [scheduler]
    try:
        for first in range(0, workers, PER_PROCESS):
            count = str(min(PER_PROCESS, workers - first))
            processes.append(start(__file__, "--simulate", address, str(first), count, str(scratch), str(judge_s)))
        engine = evaluator(address, certificates, SETTINGS)
        await engine.start()
        for _ in range(240):
            if len(engine._roster.usable()) == workers:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(3.0)
        engine._headers[problem.id] = header
        yield engine, problem, scheduler.pid
        await engine.close()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


async def saturate(workers: int, judge_s: float, seconds: float, scratch: Path) -> None:
    async with simulated_cluster(workers, scratch, judge_s) as (engine, problem, _):
        ended: list[float] = []

        async def judge_all(first: int) -> None:
            for number in range(first, 10**6, engine.width):
                verdict = await engine.evaluate(problem, "cpp", source(number), lambda stage: None)
                assert verdict.correct, verdict.reason
                ended.append(time.monotonic())

        tasks = [asyncio.create_task(judge_all(first)) for first in range(engine.width)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        for one in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(one, asyncio.CancelledError):
                raise one
    if len(ended) <= 2 * workers:
        raise SystemExit("too few evaluations; raise --seconds")
    # The first verdicts include the first builds.
    count, took = len(ended) - 2 * workers, ended[-1] - ended[2 * workers - 1]
    each = took * workers / count
    print(f"{workers} simulated workers on this machine ({os.cpu_count()} cores), {judge_s:g} s per evaluation")
    print(f"{count} evaluations in {took:.1f} s: the workers judge {judge_s / each:.1%} of the time, "
          f"and are idle for {1e3 * (each - judge_s):.1f} ms between two kernels")  # fmt: skip


async def measure(workers: int, rate: float, seconds: float, scratch: Path) -> None:
    async with simulated_cluster(workers, scratch) as (engine, problem, scheduler):
        cpu, began = Cpu(scheduler), time.monotonic()
        await asyncio.sleep(10.0)
        idle = cpu.shares(time.monotonic() - began)
        sizes: dict[str, int] = {}
        _count_sizes(engine, sizes)
        cpu, began = Cpu(scheduler), time.monotonic()
        total = round(rate * seconds)
        tasks = []
        for number in range(total):
            tasks.append(asyncio.create_task(one(engine, problem, number)))
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.monotonic()))
        added = [await task for task in tasks]
        took = time.monotonic() - began
        busy = cpu.shares(took)
    added_ms = sorted(1e3 * one for one in added)
    print(f"{workers} simulated workers on this machine ({os.cpu_count()} cores), {total} evaluations in {took:.0f} s")
    print(f"evaluations/s: {total / took:.2f}")
    print(f"transport time per evaluation (two tasks), ms: median {statistics.median(added_ms):.1f}, "
          f"p90 {added_ms[int(0.9 * total)]:.1f}, max {added_ms[-1]:.1f}")  # fmt: skip
    for name, (still, work) in {"engine": (idle[0], busy[0]), "scheduler": (idle[1], busy[1])}.items():
        each = (work - still) * took / total
        print(f"{name}: {still:.1%} of a core with heartbeats only, {work:.1%} at this rate, "
              f"{1e3 * each:.1f} ms per evaluation, {1e3 * still / workers:.2f} ms per heartbeat")  # fmt: skip
    for name, size in sizes.items():
        print(f"{name}: {size:,} bytes")


async def one(engine: ClusterEvaluator, problem: ProblemSpec, number: int) -> float:
    """Judge a kernel. Return the seconds spent neither building nor judging, including waits for a free device."""
    began = time.monotonic()
    verdict = await engine.evaluate(problem, "cpp", source(number), lambda stage: None)
    assert verdict.correct, verdict.reason
    return time.monotonic() - began - verdict.stage_s["build"] - verdict.stage_s["judged"]


class Cpu:
    """Processor time of this process and of the scheduler since the creation of this object."""

    def __init__(self, scheduler: int) -> None:
        self._scheduler = psutil.Process(scheduler)
        self._at = self._now()

    def _now(self) -> tuple[float, float]:
        times = self._scheduler.cpu_times()
        return time.process_time(), times.user + times.system

    def shares(self, seconds: float) -> tuple[float, float]:
        now = self._now()
        return (now[0] - self._at[0]) / seconds, (now[1] - self._at[1]) / seconds


def _count_sizes(engine: ClusterEvaluator, sizes: dict[str, int]) -> None:
    submit, hear = engine._link.submit, engine._hear_report

    def counted(order: m.Order, address: str, resource: str) -> object:
        sizes[f"order {type(order.work).__name__}"] = len(m.encode(order))
        return submit(order, address, resource)

    def heard(report: m.Report) -> None:
        sizes[f"report {type(report.answer).__name__}"] = len(m.encode(report))
        hear(report)

    engine._link.submit = counted  # type: ignore[method-assign]
    engine._link._on_report = heard
    sizes["heartbeat"] = max(len(m.encode(device.beat)) for device in engine._roster.devices.values())


async def against_local(kernels: int, language: Language, scratch: Path) -> None:
    certificates = scratch / "certs"
    create(certificates, ["127.0.0.1"])
    problem, header = await softmax(language)
    settings = EvaluationConfig(torch_compile=False, device="cuda" if language == "cu" else "cpu")
    scheduler, address = start_scheduler(certificates)
    worker = start(
        *("-m", "tui.cli.main", "worker", "--scheduler", address, "--certificates", str(certificates)),
        *("--gpus", "all" if language == "cu" else "none", "--name", "here"),
        stdout=subprocess.DEVNULL,
    )
    local = LocalEvaluator(settings, scratch)
    cluster = evaluator(address, certificates, settings)
    try:
        await local.start()
        await cluster.start()
        for each in (local, cluster):
            await each.open(problem, header)
        both: dict[str, list[tuple[float, Verdict]]] = {"local": [], "cluster": []}
        for number in range(kernels):
            order = list(zip(both, (local, cluster), strict=True))
            for name, each in order if number % 2 else reversed(order):
                began = time.monotonic()
                found = await each.evaluate(problem, language, source(number, language), lambda stage: None)
                judged = sum(found.stage_s.get(stage, 0.0) for stage in ("build", "start", "check", "timing"))
                judged += found.stage_s.get("kernelbench", 0.0) + found.stage_s.get("repeats", 0.0)
                judged += found.stage_s.get("waiting", 0.0)
                both[name].append((time.monotonic() - began - judged, found))
    finally:
        await local.close()
        await cluster.close()
        for process in (worker, scheduler):
            process.terminate()
            process.wait(20)
    print(f"{kernels} softmax kernels, judged locally and by a worker on this machine ({os.cpu_count()} cores)")
    for name, results in both.items():
        beyond = [1e3 * seconds for seconds, _ in results]
        ms = [verdict.kernel.median_ms for _, verdict in results if verdict.kernel is not None]
        print(f"{name}: median {statistics.median(beyond):.1f} ms spent neither building nor judging; "
              f"median kernel time {statistics.median(ms):.3f} ms")  # fmt: skip
    extra = statistics.median(1e3 * (b[0] - a[0]) for a, b in zip(both["local"], both["cluster"], strict=True))
    print(f"median extra time per evaluation: {extra:.1f} ms")
    same = sum(a[1].status == b[1].status for a, b in zip(both["local"], both["cluster"], strict=True))
    pairs = [(a[1].speedup, b[1].speedup) for a, b in zip(both["local"], both["cluster"], strict=True)]
    ratios = [there / here for here, there in pairs if here and there]
    times = [(a[1].kernel, b[1].kernel) for a, b in zip(both["local"], both["cluster"], strict=True)]
    apart = [there.median_ms / here.median_ms for here, there in times if here is not None and there is not None]
    print(f"ratio of kernel times, cluster to local: median {statistics.median(apart):.4f}, "
          f"{min(apart):.4f} to {max(apart):.4f}")  # fmt: skip
    print(f"equal statuses: {same} of {kernels}; ratio of speedups: median {statistics.median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, help="default: 32; with --saturated 2")
    parser.add_argument("--rate", type=float, default=5.0, help="evaluations per second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--saturated", action="store_true")
    parser.add_argument("--judge-ms", type=float, default=500.0, help="duration of an evaluation, with --saturated")
    parser.add_argument("--against-local", action="store_true")
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--language", choices=["cpp", "cu"], default="cpp")
    parser.add_argument("--simulate", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.simulate is not None:
        import msgspec

        address, first, count, scratch, judge_s = chosen.simulate
        verdict = msgspec.json.decode((Path(scratch) / "verdict.json").read_bytes(), type=Verdict)
        asyncio.run(simulate_workers(address, Path(scratch) / "certs", int(first), int(count), verdict, float(judge_s)))
    with tempfile.TemporaryDirectory(prefix="cluster-") as scratch:
        if chosen.against_local:
            asyncio.run(against_local(chosen.kernels, chosen.language, Path(scratch)))
        elif chosen.saturated:
            asyncio.run(saturate(chosen.workers or 2, chosen.judge_ms / 1e3, chosen.seconds, Path(scratch)))
        else:
            asyncio.run(measure(chosen.workers or 32, chosen.rate, chosen.seconds, Path(scratch)))


if __name__ == "__main__":
    main()
