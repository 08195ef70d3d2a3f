"""Does the judge say the same twice? Ten verdicts on one kernel, and heats of a kernel against its own copy.

    python benchmarks/repeatability.py [--form cpp|cu] [--verdicts 10] [--heats 5] [--kernel FILE --problem REF]

Prints the factors, their max / min, and how many heats found a difference where there is none. Needs an idle machine,
and says whether it had one: a virtual machine cannot see who shares its cores and its memory, so fixed work (a copy
larger than the caches, a matrix product) is timed before and after each verdict on a CPU. With ``--idle-within 0.05``
only verdicts between two probes within 5 % of the fastest count; it goes on, up to ``--minutes``, for enough of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.evaluator import sources  # noqa: E402
from engine.config import EvaluationConfig  # noqa: E402
from engine.problem.catalog import inspect_files, resolve  # noqa: E402
from engine.problem.header import derive_header  # noqa: E402
from engine.problem.spec import Form, ProblemSpec  # noqa: E402
from engine.workers.local import LocalEvaluator  # noqa: E402


def probe() -> tuple[float, float]:
    """Milliseconds of a copy of 64 MiB and of a matrix product: what the machine gives just now."""
    source, target = torch.empty(16 << 20), torch.empty(16 << 20)
    square = torch.rand(768, 768)

    def median_ms(work: Callable[[], object]) -> float:
        took = []
        for _ in range(25):
            started = time.perf_counter()
            work()
            took.append(1e3 * (time.perf_counter() - started))
        return statistics.median(took)

    return median_ms(lambda: target.copy_(source)), median_ms(lambda: square @ square)


def slowdowns(probes: list[tuple[float, float]]) -> list[float]:
    """How much slower the machine was around each verdict than at its fastest: 1.0 is as fast. Probe i is before it."""
    fastest = [min(kind) for kind in zip(*probes, strict=True)]
    worst = [max(took / best for took, best in zip(each, fastest, strict=True)) for each in probes]
    return [max(before, after) for before, after in itertools.pairwise(worst)]


async def ten(
    evaluator: LocalEvaluator, problem: ProblemSpec, form: Form, source: str, arguments: argparse.Namespace
) -> None:
    """Verdicts until enough were given by an idle machine; their factors."""
    factors: list[float] = []
    probes = [probe()]
    deadline = time.monotonic() + 60 * arguments.minutes
    limit = 1.0 + arguments.idle_within
    while True:
        verdict = await evaluator.evaluate(problem, form, source, lambda stage: None)
        if not verdict.correct or verdict.speedup is None or verdict.kernel is None:
            sys.exit(f"not correct: {verdict.reason}")
        factors.append(verdict.speedup)
        probes.append(probe())
        slow = slowdowns(probes)
        interval = f"[{verdict.speedup_low:.4f}, {verdict.speedup_high:.4f}]"
        numbers = f"{verdict.kernel.median_ms:.4f} ms, {verdict.pairs} pairs, machine at 1/{slow[-1]:.2f}"
        print(f"verdict  {len(factors):2} factor {verdict.speedup:.4f} {interval} {numbers}", flush=True)
        idle = [factor for factor, by in zip(factors, slow, strict=True) if by <= limit]
        wanted = factors if form == "cu" or not arguments.idle_within else idle
        if len(wanted) >= arguments.verdicts or time.monotonic() > deadline:
            break
    print(f"factors  max / min = {max(factors) / min(factors):.4f} of all {len(factors)}")
    if wanted is idle:
        spread = f"{max(idle) / min(idle):.4f}" if idle else "unknown"
        print(f"         max / min = {spread} of {len(idle)} with the machine within {limit:.2f} of its fastest")


async def measure(form: Form, reference: str, source: str, arguments: argparse.Namespace) -> None:
    (problem,) = await inspect_files(resolve([reference], Path.cwd()))
    if not isinstance(problem, ProblemSpec):
        sys.exit(str(problem))
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = LocalEvaluator(
            EvaluationConfig(device="cuda" if form == "cu" else "cpu"), Path(scratch), thorough=True
        )
        try:
            (device, *_) = await evaluator.start()
            print(f"device   {device.name}; problem {problem.name}")
            await evaluator.open(problem, derive_header(problem, form))
            await ten(evaluator, problem, form, source, arguments)
            found = 0
            for number in range(arguments.heats):
                copies = {"a": (form, source), "b": (form, f"{source}\n// copy {number}\n")}
                slower = (await evaluator.heat(problem, copies))[1]
                found += not slower.tied
                ratio = f"{slower.ratio:.4f} [{slower.ratio_low:.4f}, {slower.ratio_high:.4f}]"
                print(f"heat     {number + 1:2} ratio {ratio}, {'tied' if slower.tied else 'DIFFERENT'}")
            print(f"heats    {found} of {arguments.heats} found a difference between a kernel and its copy")
        finally:
            await evaluator.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=("cpp", "cu"), default="cpp")
    parser.add_argument("--verdicts", type=int, default=10)
    parser.add_argument("--heats", type=int, default=5)
    parser.add_argument("--idle-within", type=float, default=0.0, help="0.05: count what an idle machine gave; 0: all")
    parser.add_argument("--minutes", type=float, default=15.0, help="when to give up waiting for an idle machine")
    parser.add_argument("--kernel", type=Path, help="a kernel file; a softmax by default")
    parser.add_argument("--problem", help="its problem, for example builtin:headline/layernorm")
    arguments = parser.parse_args()
    form: Form = arguments.form
    folder = "headline" if form == "cu" else "quickstart"
    reference = arguments.problem or f"builtin:{folder}/softmax"
    source = arguments.kernel.read_text() if arguments.kernel else sources(form, 1)[0]
    asyncio.run(measure(form, reference, source, arguments))


if __name__ == "__main__":
    main()
