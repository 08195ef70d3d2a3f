"""Measure the repeatability of the judge: ten verdicts on one kernel, and runoffs of a kernel against its copy.

    python benchmarks/repeatability.py [--language cpp|cu] [--verdicts 10] [--runoffs 5] [--kernel FILE --problem REF]
                                        [--competing 1]

The script prints the speedups, the ratio of the largest to the smallest, the tolerance, and the number of runoffs that
found a difference. The script needs an idle machine.

On a virtual machine, other guests can use cores and memory bandwidth unnoticed. The reference does the same work in
every verdict, so its time reveals other guests' load. With ``--idle-within 0.1``, the script counts a verdict only if
its reference took at most 10% longer than the fastest. The script then runs for up to ``--minutes`` to collect enough
verdicts. With ``--competing 1``, one other process keeps a core busy.
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
from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.config.tolerance import tolerance_caption  # noqa: E402
from engine.devices.fact import DeviceFact  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import inspect_files, resolve  # noqa: E402
from engine.problem.spec import Language, ProblemSpec  # noqa: E402
from engine.session.records.verdict_text import counted_pairs  # noqa: E402
from tests.engine.proposers.playbook.wandering import known, ladder  # noqa: E402


def usual(problem: ProblemSpec, language: Language, device: DeviceFact) -> str:
    """Return the default kernel. On a CPU, the default is the playbook's kernel with all transformations, which is as
    fast as eager. A slow kernel has a different bottleneck, so disturbances would affect it differently.
    """
    if language == "cu":
        return sources(language, 1)[0]
    template, program = known(problem, language)
    return template.emit(program, ladder(template, program, problem, device)[-1].with_({"parallel": "rows"}), problem)


async def ten(
    evaluator: LocalEvaluator, problem: ProblemSpec, language: Language, source: str, arguments: argparse.Namespace
) -> None:
    """Judge the kernel until enough verdicts come from an idle machine. Print the verdicts' speedups."""
    speedups: list[float] = []
    eager_ms: list[float] = []
    deadline = time.monotonic() + 60 * arguments.minutes
    limit = 1.0 + arguments.idle_within
    while True:
        verdict = await evaluator.evaluate(problem, language, source, lambda stage: None)
        if not verdict.correct or verdict.speedup is None or verdict.kernel is None or verdict.reference is None:
            sys.exit(f"not correct: {verdict.reason}")
        speedups.append(verdict.speedup)
        eager_ms.append(verdict.reference.median_ms)
        interval = f"[{verdict.speedup_low:.4f}, {verdict.speedup_high:.4f}]"
        times = f"{verdict.kernel.median_ms:.4f} ms, eager {verdict.reference.median_ms:.4f} ms"
        counted = f"{counted_pairs(verdict)} pairs"
        remarks = "".join(f", {flag}" for flag in verdict.flags)
        print(f"verdict  {len(speedups):2} speedup {verdict.speedup:.4f} {interval} {times}, {counted}{remarks}")
        idle = [speedup for speedup, ms in zip(speedups, eager_ms, strict=True) if ms <= limit * min(eager_ms)]
        wanted = idle if arguments.idle_within else speedups
        if len(wanted) >= arguments.verdicts or time.monotonic() > deadline:
            break
    print(f"speedups max / min = {max(speedups) / min(speedups):.4f} of all {len(speedups)}")
    if wanted is idle:
        spread = max(idle) / min(idle)
        print(f"         max / min = {spread:.4f} of {len(idle)} with eager time within {limit:.2f} of the shortest")


async def measure(language: Language, reference: str, arguments: argparse.Namespace) -> None:
    (problem,) = await inspect_files(resolve([reference], Path.cwd()))
    if not isinstance(problem, ProblemSpec):
        sys.exit(str(problem))
    with tempfile.TemporaryDirectory() as scratch:
        config = EvaluationConfig(device="cuda" if language == "cu" else "cpu")
        evaluator = LocalEvaluator(config, Path(scratch), thorough=True)
        try:
            (device, *_) = await evaluator.start()
            source = arguments.kernel.read_text() if arguments.kernel else usual(problem, language, device)
            print(f"device   {device.name}; problem {problem.name}; {tolerance_caption(config.tolerance)}")
            await evaluator.open(problem, derive_header(problem, language))
            await ten(evaluator, problem, language, source, arguments)
            found = 0
            for number in range(arguments.runoffs):
                copies = {"a": (language, source), "b": (language, f"{source}\n// copy {number}\n")}
                slower = (await evaluator.runoff(problem, copies))[1]
                found += not slower.tied
                ratio = f"{slower.ratio:.4f} [{slower.ratio_low:.4f}, {slower.ratio_high:.4f}]"
                print(f"runoff   {number + 1:2} ratio {ratio}, {'tied' if slower.tied else 'DIFFERENT'}")
            print(f"runoffs  {found} of {arguments.runoffs} found a difference between a kernel and its copy")
        finally:
            await evaluator.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=("cpp", "cu"), default="cpp")
    parser.add_argument("--verdicts", type=int, default=10)
    parser.add_argument("--runoffs", type=int, default=5)
    parser.add_argument(
        "--idle-within",
        type=float,
        default=0.0,
        help="0.1: count only verdicts from an idle machine; 0: count all verdicts",
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="time limit for the verdicts from an idle machine")
    parser.add_argument("--competing", type=int, default=0, help="number of processes that each keep a core busy")
    parser.add_argument("--kernel", type=Path, help="kernel file (default: a softmax kernel)")
    parser.add_argument("--problem", help="the kernel's problem, for example builtin:headline/layernorm")
    arguments = parser.parse_args()
    language: Language = arguments.language
    folder = "headline" if language == "cu" else "quickstart"
    reference = arguments.problem or f"builtin:{folder}/softmax"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.competing)]
    try:
        asyncio.run(measure(language, reference, arguments))
    finally:
        for one in busy:
            one.kill()


if __name__ == "__main__":
    main()
