"""Does the judge say the same twice? Ten verdicts on one kernel, and heats of a kernel against its own copy.

    python benchmarks/repeatability.py [--form cpp|cu] [--verdicts 10] [--heats 5] [--kernel FILE --problem REF]
                                        [--competing 1]

Prints the factors, their max / min, and how many heats found a difference where there is none. Needs an idle machine. A
virtual machine cannot see who shares its cores and its memory, but the reference is the same work in every verdict:
with ``--idle-within 0.1`` only verdicts count in which it took at most 10 % longer than in the fastest one, and it goes
on, up to ``--minutes``, for enough of them. ``--competing 1`` keeps one process busy beside them all.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.evaluator import sources  # noqa: E402
from engine.config import EvaluationConfig  # noqa: E402
from engine.events import DeviceFact  # noqa: E402
from engine.problem.catalog import inspect_files, resolve  # noqa: E402
from engine.problem.header import derive_header  # noqa: E402
from engine.problem.spec import Form, ProblemSpec  # noqa: E402
from engine.workers.local import LocalEvaluator  # noqa: E402
from tests.engine.proposers.wandering import known, ladder  # noqa: E402


def usual(problem: ProblemSpec, form: Form, device: DeviceFact) -> str:
    """The kernel unless one is given: on a CPU the playbook's after all its moves, which takes as long as eager does,
    since who is 6 times slower is bound by something else and hears of other disturbances than eager."""
    if form == "cu":
        return sources(form, 1)[0]
    template, program = known(problem, form)
    return template.emit(program, ladder(template, program, problem, device)[-1].with_({"parallel": "rows"}), problem)


async def ten(
    evaluator: LocalEvaluator, problem: ProblemSpec, form: Form, source: str, arguments: argparse.Namespace
) -> None:
    """Verdicts until enough were given by an idle machine; their factors."""
    factors: list[float] = []
    eager_ms: list[float] = []
    deadline = time.monotonic() + 60 * arguments.minutes
    limit = 1.0 + arguments.idle_within
    while True:
        verdict = await evaluator.evaluate(problem, form, source, lambda stage: None)
        if not verdict.correct or verdict.speedup is None or verdict.kernel is None or verdict.reference is None:
            sys.exit(f"not correct: {verdict.reason}")
        factors.append(verdict.speedup)
        eager_ms.append(verdict.reference.median_ms)
        interval = f"[{verdict.speedup_low:.4f}, {verdict.speedup_high:.4f}]"
        times = f"{verdict.kernel.median_ms:.4f} ms, eager {verdict.reference.median_ms:.4f} ms"
        counted = f"{verdict.counted_pairs} pairs"
        remarks = "".join(f", {flag}" for flag in verdict.flags)
        print(f"verdict  {len(factors):2} factor {verdict.speedup:.4f} {interval} {times}, {counted}{remarks}")
        idle = [factor for factor, ms in zip(factors, eager_ms, strict=True) if ms <= limit * min(eager_ms)]
        wanted = idle if arguments.idle_within else factors
        if len(wanted) >= arguments.verdicts or time.monotonic() > deadline:
            break
    print(f"factors  max / min = {max(factors) / min(factors):.4f} of all {len(factors)}")
    if wanted is idle:
        spread = max(idle) / min(idle)
        print(f"         max / min = {spread:.4f} of {len(idle)} whose eager time is within {limit:.2f} of the least")


async def measure(form: Form, reference: str, arguments: argparse.Namespace) -> None:
    (problem,) = await inspect_files(resolve([reference], Path.cwd()))
    if not isinstance(problem, ProblemSpec):
        sys.exit(str(problem))
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = LocalEvaluator(
            EvaluationConfig(device="cuda" if form == "cu" else "cpu"), Path(scratch), thorough=True
        )
        try:
            (device, *_) = await evaluator.start()
            source = arguments.kernel.read_text() if arguments.kernel else usual(problem, form, device)
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
    parser.add_argument("--idle-within", type=float, default=0.0, help="0.1: count what an idle machine gave; 0: all")
    parser.add_argument("--minutes", type=float, default=15.0, help="when to give up waiting for an idle machine")
    parser.add_argument("--competing", type=int, default=0, help="processes that keep a core busy beside the verdicts")
    parser.add_argument("--kernel", type=Path, help="a kernel file; a softmax by default")
    parser.add_argument("--problem", help="its problem, for example builtin:headline/layernorm")
    arguments = parser.parse_args()
    form: Form = arguments.form
    folder = "headline" if form == "cu" else "quickstart"
    reference = arguments.problem or f"builtin:{folder}/softmax"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.competing)]
    try:
        asyncio.run(measure(form, reference, arguments))
    finally:
        for one in busy:
            one.kill()


if __name__ == "__main__":
    main()
