"""Measure the headline problems on one GPU, and print the table of docs/reference/results.md.

    python benchmarks/headline.py search STATE --seed 0 --minutes 3.5 --tolerance crfm
    python benchmarks/headline.py sizes STATE          # each winner at a smaller, an odd and a larger size
    python benchmarks/headline.py kernelbench STATE --checkout KERNELBENCH
    python benchmarks/headline.py columns STATE        # eager, eager with TF32, torch.compile, max-autotune
    python benchmarks/headline.py all STATE --seed 0 --minutes 3.5 --seconds 570   # the four above, in this order
    python benchmarks/headline.py table STATE

``STATE`` is a folder that holds all results. For a call on another machine, first copy ``STATE`` there. Each step
stores its results immediately, and skips results that are already stored. To continue an interrupted call, repeat the
same command. With ``--seconds``, a step starts work only if the call has enough time left, as predicted by
``PREDICTED_S``. A call of ten minutes has time for a search of 3.5 minutes, its sizes and the first columns. Later
calls, for the next seeds, measure the other columns.

- ``search`` writes the preset's config as ``kernel-tui init`` does. It changes the seed, the minutes and the tolerance,
  and runs the search headless. The step stores the session, the output of ``show --json`` and the best kernels in
  ``STATE/TOLERANCE-SEED``.
- ``sizes`` and ``columns`` use the judge's own code: the same buffers, cache flushes, repetitions and statistics.
  ``columns`` also checks each baseline's outputs under both tolerances. Each baseline runs in a separate process.
- ``kernelbench`` exports each winner as a solution, and runs KernelBench's evaluator and static checker on it. This
  step needs a clone of KernelBench and a GPU.
- ``table`` needs no GPU. The table shows medians over the seeds, and which goals the medians meet.

No step needs an installed ``kernel-tui``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import kernelbench_agreement  # noqa: E402
from engine.config.schema import load_evaluation  # noqa: E402
from engine.devices.hardware import discover  # noqa: E402
from engine.evaluation.at_sizes import judge_at_sizes  # noqa: E402
from engine.evaluation.judge.messages import JudgeSettings  # noqa: E402
from engine.evaluation.judge_process import child_environment  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.export import ExportError  # noqa: E402
from engine.export.kernelbench import solution  # noqa: E402
from engine.problem.resize import NoOtherSizes, other_sizes  # noqa: E402
from engine.problem.spec import Language, ProblemSpec  # noqa: E402
from engine.session.state.session_state import SessionState  # noqa: E402
from engine.session.store import SessionPaths, SessionReader  # noqa: E402
from tui.view.over_time.history import History, fold_all  # noqa: E402

KERNEL_TUI = (sys.executable, "-c", "from kernel_tui.command import main; main()")
GOALS_MS = {
    "crfm": {
        "matmul_fp16": 0.195,
        "matmul_fp32": 0.25,
        "conv2d": 0.075,
        "conv2d_relu_maxpool": 0.07,
        "flash_attention_fp16": 0.17,
        "softmax": 0.54,
        "layernorm": 0.175,
        "layernorm_shifted": 0.175,
    },
    "kernelbench": {
        "matmul_fp16": 0.195,
        "matmul_fp32": 0.70,
        "conv2d": 0.15,
        "conv2d_relu_maxpool": 0.15,
        "flash_attention_fp16": 0.17,
        "softmax": 0.54,
        "layernorm": 0.195,
        "layernorm_shifted": 0.195,
    },
}
"""Goals for the best kernel's time on an H200 in milliseconds, by tolerance."""
GOAL_SOL = {"crfm": 0.70, "kernelbench": 0.65}
"""Goals for the median % SOL over the problems."""
MAY_LOSE = {"matmul_fp16": 0.93}
"""Required speedup over the fastest baseline, for problems whose best kernel may be slower than that baseline."""
NEAR = 1.05
"""Largest ratio of a problem's best time so far to its final best time that counts as near."""
PREDICTED_S = {
    "start": 25.0,  # starts the engine, and finishes the last verdicts after the minutes are used up
    "sizes": 20.0,  # judges one winner at three sizes, after the judge has started
    "kernelbench": 150.0,  # builds all winners in parallel, then runs five trials and 100 timed calls for each
    "eager": 12.0,  # starts a process that imports torch and opens the problem
    "eager_tf32": 12.0,
    "compile": 25.0,
    "max_autotune": 75.0,
}
"""Predicted seconds on an H200 with 16 cores. A run prints and stores the actual seconds."""
COLUMNS = ("eager", "eager_tf32", "compile", "max_autotune")
NAMES = {"eager": "eager", "eager_tf32": "eager, TF32", "compile": "torch.compile", "max_autotune": "max-autotune"}
PRODUCTS = re.compile(r"conv|mm\b|matmul|linear|attention|einsum|bmm")
PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
SUFFIXES: dict[str, Language] = {"cuda": "cu", "cpp": "cpp", "python": "py", "triton": "triton"}
RECORDING_CALLS = 3
"""Number of calls before the checked call. With CUDA graphs, torch.compile compiles, warms up and records a graph in
these calls.
"""
TIMED_CALLS = 100
"""Number of timed calls per kernel, as in KernelBench's scripts."""


class Clock:
    """The time that a call has left."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def has(self, needed: float, what: str) -> bool:
        """Return whether ``needed`` seconds are left; if not, print that the script skips ``what``."""
        left = None if self._end is None else self._end - time.monotonic()
        if left is None or left >= needed:
            return True
        print(f"skipped: {what} needs about {needed:.0f} s, but only {max(left, 0):.0f} s are left", flush=True)
        return False


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    new.replace(path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.exists() else None


def kernel_tui(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """Run a ``kernel-tui`` command in ``folder``, and capture the output of ``show``."""
    captured = subprocess.PIPE if "--json" in arguments else None
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [*KERNEL_TUI, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, stdout=captured, check=False, env={**os.environ, "PYTHONPATH": path})


def print_plan(minutes: float) -> None:
    """Print the predicted seconds of each step for the eight headline problems."""
    problems, products = len(GOALS_MS["crfm"]), 3  # convolutions and matmul_fp32 have a TF32 column
    columns = {one: PREDICTED_S[one] * (products if one == "eager_tf32" else problems) for one in COLUMNS}
    plan = {
        "search": 60 * minutes + PREDICTED_S["start"],
        "sizes": PREDICTED_S["start"] + problems * PREDICTED_S["sizes"],
        "kernelbench": PREDICTED_S["kernelbench"],
    } | {f"column {NAMES[one]}": seconds for one, seconds in columns.items()}
    print("predicted: " + ", ".join(f"{step} {seconds:.0f} s" for step, seconds in plan.items()), flush=True)


# --- search -------------------------------------------------------------------------------------------------------


def with_key(text: str, key: str, value: object, section: str = "") -> str:
    """Return a TOML text with ``key`` set to ``value``, in the key's line or in a new line of ``section``."""
    written = json.dumps(value)
    pattern = rf"^{key} = (\[[^\]]*\]|[^#\n]*?)(?=\s*(#|$))"
    changed, count = re.subn(pattern, f"{key} = {written}", text, count=1, flags=re.M)
    if count:
        return changed
    start = rf"^\[{section}\]\n" if section else r"^name = [^\n]*\n"
    changed, count = re.subn(start, lambda found: f"{found.group()}{key} = {written}\n", text, count=1, flags=re.M)
    assert count, f"the config has no section for {key}"
    return changed


def session_of(run: Path) -> SessionPaths | None:
    """Return the session of a run. Return None before the search."""
    found = sorted((run / "sessions").glob("*/session.db"))
    return SessionPaths.at(found[0].parent) if found else None


def folded(run: Path) -> tuple[SessionState, History, dict[str, str]]:
    """Return a run's state, its history, and the source of each problem's best kernel."""
    paths = session_of(run)
    assert paths is not None, f"{run} has no session"
    with SessionReader(paths) as reader:
        state, _, history = fold_all(reader.read())
        bests = {name: problem.best for name, problem in state.problems.items() if problem.best is not None}
        return state, history, {name: reader.text(state.variants[best].source) for name, best in bests.items()}


def search(arguments: argparse.Namespace, clock: Clock) -> None:
    """Run one seed's search, or resume it, and store its results."""
    run = arguments.state / f"{arguments.tolerance}-{arguments.seed}"
    if (run / "show.json").exists():
        print(f"{run.name}: the search has finished", flush=True)
        return
    if not clock.has(60 * arguments.minutes + PREDICTED_S["start"], f"the search {run.name}"):
        return
    run.mkdir(parents=True, exist_ok=True)
    config, paths = run / "config.toml", session_of(run)
    if paths is None:
        kernel_tui("init", "--preset", arguments.preset, "--force", config, folder=run)
        text = with_key(config.read_text(), "seed", arguments.seed)
        text = with_key(text, "minutes", arguments.minutes, "budget")
        text = with_key(text, "tolerance", arguments.tolerance, "evaluation")
        if arguments.problems:
            text = with_key(text, "problems", arguments.problems.split(","))
        if arguments.device:
            text = with_key(text, "device", arguments.device, "evaluation")
        config.write_text(text)
        ended = kernel_tui("run", config, "--headless", "--new", folder=run)
    else:
        ended = kernel_tui("resume", paths.directory, "--headless", folder=run)
    if session_of(run) is None:
        sys.exit(f"{run.name}: the search started no session; see its message above")
    if ended.returncode:
        sys.exit(f"{run.name}: the search ended with exit code {ended.returncode}; type the same command to continue")
    store(run)


def store(run: Path) -> None:
    """Store the results and the best kernels of a run's session."""
    paths = session_of(run)
    assert paths is not None, f"{run} has no session"
    results = json.loads(kernel_tui("show", paths.directory, "--json", folder=run).stdout)
    state, history, sources = folded(run)
    for name, source in sources.items():
        kernel = run / "best" / f"{name}.{state.variants[str(state.problems[name].best)].language}"
        kernel.parent.mkdir(exist_ok=True)
        kernel.write_text(source)
    results["versions"] = versions()
    results["minutes_to_near"] = {name: near_at(history, name) for name in sources}
    write_json(run / "show.json", results)


def near_at(history: History, problem: str) -> float | None:
    """Return the minutes after which the problem's best stays within ``NEAR`` of its final best."""
    bests = history.problems[problem].bests
    reached = None
    for one in bests:
        near = one.speedup * NEAR >= bests[-1].speedup
        reached = (one.seconds if reached is None else reached) if near else None
    return None if reached is None else reached / 60


def versions() -> str:
    """Return the versions of Python, torch and CUDA, from a separate process."""
    code = "import sys, torch; print(f'Python {sys.version.split()[0]}, torch {torch.__version__}')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def runs(state: Path) -> Iterator[Path]:
    """Yield the runs with a finished search, sorted by tolerance and seed."""
    yield from sorted(path.parent for path in state.glob("*-*/show.json"))


# --- sizes --------------------------------------------------------------------------------------------------------


def sizes(state: Path, clock: Clock) -> None:
    """Judge the winners at other sizes, unless the search has already done so."""
    for run in runs(state):
        asyncio.run(sizes_of_run(run, clock))


async def sizes_of_run(run: Path, clock: Clock) -> None:
    path = run / "sizes.json"
    found: dict[str, Any] = read_json(path) or {}
    state, _, sources = folded(run)
    for name in sources:
        checked = state.variants[str(state.problems[name].best)].at_sizes
        if name not in found and checked is not None:
            found[name] = checked
    missing = [name for name in sources if name not in found]
    write_json(path, found)
    if not missing or not clock.has(PREDICTED_S["start"] + PREDICTED_S["sizes"], f"sizes of {run.name}"):
        return
    with tempfile.TemporaryDirectory() as scratch:
        evaluator = LocalEvaluator(load_evaluation(run / "config.toml"), Path(scratch))
        try:
            await evaluator.start()
            for name in missing:
                if not clock.has(PREDICTED_S["sizes"], f"sizes of {run.name} {name}"):
                    break
                spec, best = state.problems[name].spec, state.variants[str(state.problems[name].best)]
                try:
                    places = await other_sizes(spec)
                except NoOtherSizes as error:
                    found[name] = {"note": str(error), "results": []}
                else:
                    judged = judge_at_sizes(evaluator, places, best.language, sources[name])
                    found[name] = {"results": [short async for short, _ in judged]}
                write_json(path, found)
                print(f"{run.name}: {name} at other sizes", flush=True)
        finally:
            await evaluator.close()


# --- kernelbench --------------------------------------------------------------------------------------------------


def kernelbench(state: Path, checkout: Path | None, clock: Clock) -> None:
    """Judge the winners with KernelBench's evaluator."""
    if checkout is None or not any(device.kind == "cuda" for device in discover()):
        print("left out: KernelBench's verdicts need a GPU and --checkout with a clone of KernelBench", flush=True)
        return
    for run in runs(state):
        path = run / "kernelbench.json"
        if path.exists() or not clock.has(PREDICTED_S["kernelbench"], f"KernelBench's verdicts on {run.name}"):
            continue
        folder = run / "solutions"
        shutil.rmtree(folder, ignore_errors=True)
        found: dict[str, Any] = {}
        files: dict[str, list[tuple[str, Path]]] = {}
        folded_state, _, sources = folded(run)
        for name, source in sources.items():
            problem = folded_state.problems[name]
            file = folder / name / "solution.py"
            file.parent.mkdir(parents=True)
            try:
                text = solution(problem.spec, folded_state.variants[str(problem.best)].language, source)
            except ExportError as error:
                found[name] = {"correct": None, "note": str(error)}
                continue
            file.write_text(text)
            file.with_suffix(".ref").write_text(problem.spec.source)
            precision = PRECISIONS[problem.spec.outputs[0].dtype]
            files.setdefault(precision, []).append((name, file))
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
            list(pool.map(kernelbench_agreement.build, (file for group in files.values() for _, file in group)))
        for precision, group in files.items():
            answers = kernelbench_agreement.judge_theirs(checkout, [file for _, file in group], TIMED_CALLS, precision)
            found |= {name: answer for (name, _), answer in zip(group, answers, strict=True)}
        write_json(path, found)
        shutil.rmtree(folder)
        print(f"{run.name}: KernelBench's verdicts", flush=True)


# --- columns ------------------------------------------------------------------------------------------------------


def columns(state: Path, clock: Clock) -> None:
    """Time the baselines of each problem that has a run."""
    specs: dict[str, ProblemSpec] = {}
    kind = "cpu"
    for run in runs(state):
        found, _, _ = folded(run)
        specs |= {name: problem.spec for name, problem in found.problems.items()}
        kind = next(iter(found.devices.values())).kind
    device = next(device for device in discover() if device.kind == kind)
    threads = len(os.sched_getaffinity(0))
    settings = JudgeSettings(
        device.kind,
        device.id,
        device.name,
        threads,
        2,
        1,
        60.0,
        0,
        tolerance_fp32=1e-2,
        tolerance_other=1e-2,
        isolate=False,
    )
    environment = child_environment(settings) | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
    for column in COLUMNS:  # Measure the cheap columns of all problems first.
        for name, spec in specs.items():
            path = state / "columns" / f"{name}.{column}.json"
            if path.exists() or (column == "eager_tf32" and not (kind == "cuda" and takes_tf32(spec))):
                continue
            if not clock.has(PREDICTED_S[column], f"{name}, {NAMES[column]}"):
                continue
            began = time.monotonic()
            command = [sys.executable, __file__, "column", column, msgspec.json.encode(settings).decode()]
            answer = subprocess.run(
                command, input=msgspec.json.encode(spec), stdout=subprocess.PIPE, env=environment, check=False
            )
            lines = answer.stdout.splitlines()
            result = json.loads(lines[-1]) if answer.returncode == 0 and lines else None
            if result is None:
                print(
                    f"{name}, {NAMES[column]}: exit code {answer.returncode}; to try again, type the same command",
                    flush=True,
                )
                continue
            seconds = time.monotonic() - began
            write_json(path, result | {"device": device.name, "seconds": seconds, "versions": versions()})
            print(f"{name}, {NAMES[column]}: {seconds:.0f} s", flush=True)


def takes_tf32(spec: ProblemSpec) -> bool:
    """Return whether the problem multiplies fp32 matrices or convolves in fp32."""
    products = any(PRODUCTS.search(node.target) for node in spec.graph or ())
    return products and any(one.dtype == "float32" for one in spec.inputs)


def measure_column(column: str, settings: JudgeSettings) -> None:
    """Read a problem from standard input, and time one of its baselines. Print one line of JSON."""
    import torch

    from engine.evaluation.correctness import comparison
    from engine.evaluation.correctness.fp64_reference import compare_in_double
    from engine.evaluation.correctness.trials import JudgedProblem
    from engine.evaluation.judge.device_lock import alone
    from engine.evaluation.judge_device import JudgeDevice
    from engine.evaluation.judge_policy import POLICY
    from engine.evaluation.timing.baselines import time_repeatedly

    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec)
    with alone(settings.device_id, lambda: False):
        judged = JudgedProblem(problem, JudgeDevice(settings.kind, settings.threads), settings.trials)
        slot, trial = judged.arena.slots[0], judged.trial(0)
        trial.load(slot)
        judged.bind(slot)
        expected = trial.expected[: len(slot.outputs)]
        if column == "eager_tf32":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        elif column == "compile":
            judged.timed.model.compile()
        elif column == "max_autotune":
            judged.timed.model.compile(mode="max-autotune")
        for _ in range(RECORDING_CALLS):
            judged.run(slot)
        outputs = [out.clone() for out in judged.run(slot)]
        meets = {}
        for name, full in (("crfm", 1e-2), ("kernelbench", 1e-4)):
            limits = comparison.Tolerances(full, 1e-2)
            exact = partial(judged.trial_in_double, trial, slot)
            meets[name] = comparison.compare(outputs, expected, limits).problem is None or (
                compare_in_double(outputs, expected, exact, limits).problem is None
            )
        least_s = POLICY.device.compiled_s if column in ("compile", "max_autotune") else 0.0
        timing = time_repeatedly(judged.device, partial(judged.forward_on, slot), least_s)
    print("\n" + msgspec.json.encode({"timing": timing, "meets": meets}).decode(), flush=True)


# --- table --------------------------------------------------------------------------------------------------------


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value >= 0.1 else f"{value:.3g}"


def spread(values: list[float], write: Callable[[float], str]) -> str:
    """Return the median with the smallest and largest value."""
    middle = write(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} [{write(min(values))}, {write(max(values))}]"


def baselines(state: Path, problem: str) -> dict[str, Any]:
    found = {column: read_json(state / "columns" / f"{problem}.{column}.json") for column in COLUMNS}
    return {column: one for column, one in found.items() if one is not None and "timing" in one}


def table(state: Path) -> None:
    """Print the Markdown tables for each tolerance, and the table for the other sizes."""
    for tolerance in GOALS_MS:
        shown = [read_json(run / "show.json") for run in runs(state) if run.name.startswith(f"{tolerance}-")]
        if shown:
            table_of_tolerance(state, tolerance, shown)
    sizes_table(state)


def table_of_tolerance(state: Path, tolerance: str, shown: list[dict[str, Any]]) -> None:
    minutes = [f"{one['engine']['minutes']:.1f}" for one in shown]
    verdicts = [str(one["verdicts"]) for one in shown]
    print(f"## Tolerance `{tolerance}`, {shown[0]['device']}\n")
    print(
        f"{shown[0]['versions']}. {len(shown)} searches (seeds), {', '.join(minutes)} minutes of engine time, ", end=""
    )
    print(f"{', '.join(verdicts)} kernels judged. Medians over the seeds, with the range:\n")
    headers = [NAMES[column] + " ms" for column in COLUMNS]
    headers += ["best ms", "goal ms", "over the fastest baseline", "% SOL", "minutes to within 5%", "KernelBench"]
    print(f"| problem | {' | '.join(headers)} |")
    print("|" + "---|" * (1 + len(headers)))
    shares, met, ahead, problems = [], 0, 0, sorted({row["problem"] for one in shown for row in one["problems"]})
    goals = GOALS_MS[tolerance]
    for name in problems:
        rows = [row for one in shown for row in one["problems"] if row["problem"] == name and row["best_ms"]]
        timed = baselines(state, name)
        cells = [column_cell(timed.get(column), tolerance) for column in COLUMNS]
        if not rows:
            print(f"| {name} | {' | '.join(cells)} | none | {goals.get(name, '-')} | | | | |")
            continue
        best = statistics.median(row["best_ms"] for row in rows)
        right = [one["timing"]["median_ms"] for one in timed.values() if one["meets"][tolerance]]
        ratio = min(right) / best if right else None
        ahead += ratio is not None and ratio > MAY_LOSE.get(name, 1.0)
        sol = [row["sol_share"] for row in rows if row["sol_share"]]
        if sol:
            shares.append(statistics.median(sol))
        goal = goals.get(name)
        reached = goal is not None and best <= goal and len(rows) == len(shown)
        met += reached
        near = [one["minutes_to_near"][name] for one in shown if one["minutes_to_near"].get(name) is not None]
        cells += [
            spread([row["best_ms"] for row in rows], milliseconds),
            "-" if goal is None else f"{goal:g} ({words(reached)})",
            f"{ratio:.2f}" if ratio is not None else "-",
            spread(sol, lambda share: f"{share:.0%}") if sol else "-",
            spread(near, lambda value: f"{value:.1f}") if near else "-",
            theirs(state, tolerance, name),
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    nearest = [max(filter(None, one["minutes_to_near"].values()), default=0.0) for one in shown]
    print(f"\n- Goals met: {met} of {len(problems)}.")
    print(f"- Faster than the fastest correct baseline (matmul_fp16: 0.93 times as fast): {ahead} of {len(problems)}.")
    if shares:
        share, goal_sol = statistics.median(shares), GOAL_SOL[tolerance]
        reached = share >= goal_sol
        print(f"- Median % SOL over the problems: {share:.0%} (goal {goal_sol:.0%}, {words(reached)}).")
    print(f"- Minutes until every problem is within 5% of its final best: {spread(nearest, lambda v: f'{v:.1f}')}.")
    print("- `*`: this baseline's outputs are outside the tolerance, so the baseline does not count.\n")


def words(reached: bool) -> str:
    return "met" if reached else "not met"


def column_cell(one: dict[str, Any] | None, tolerance: str) -> str:
    if one is None:
        return "-"
    return milliseconds(one["timing"]["median_ms"]) + ("" if one["meets"][tolerance] else "*")


def theirs(state: Path, tolerance: str, problem: str) -> str:
    """Return KernelBench's verdicts on the problem's winners, as "correct 2 of 3"."""
    found = [read_json(run / "kernelbench.json") for run in runs(state) if run.name.startswith(f"{tolerance}-")]
    judged = [one[problem]["correct"] for one in found if one is not None and problem in one]
    return f"correct {sum(map(bool, judged))} of {len(judged)}" if judged else "-"


def sizes_table(state: Path) -> None:
    print("## Other sizes\n")
    print("| run | problem | smaller | odd | larger | correct | faster than eager |")
    print("|---|---|---|---|---|---|---|")
    for run in runs(state):
        for name, found in sorted((read_json(run / "sizes.json") or {}).items()):
            results = found.get("results", [])
            cells = {one["label"]: size_cell(one) for one in results}
            correct = sum(one["status"] == "correct" for one in results)
            ahead = sum((one.get("speedup") or 0.0) > 1.0 for one in results)
            places = " | ".join(cells.get(label, "-") for label in ("smaller", "odd", "larger"))
            print(f"| {run.name} | {name} | {places} | {correct} of {len(results)} | {ahead} of {len(results)} |")


def size_cell(one: dict[str, Any]) -> str:
    if one["status"] != "correct":
        return str(one["status"]).replace("_", " ")
    return f"{one['speedup']:.2f}x ({milliseconds(one['kernel_ms'])} ms)"


def main() -> int:
    if sys.argv[1:2] == ["column"]:
        measure_column(sys.argv[2], msgspec.json.decode(sys.argv[3], type=JudgeSettings))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("search", "sizes", "kernelbench", "columns", "all", "table"))
    parser.add_argument("state", type=Path, help="the folder for the results")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=3.5, help="the search's budget")
    parser.add_argument("--tolerance", choices=tuple(GOALS_MS), default="crfm")
    parser.add_argument("--seconds", type=float, help="time limit of this call, in seconds")
    parser.add_argument("--checkout", type=Path, help="a clone of KernelBench")
    parser.add_argument("--preset", default="headline", help="the search's preset")
    parser.add_argument("--problems", help="problems instead of the preset's, separated by commas")
    parser.add_argument("--device", help="device instead of the preset's")
    arguments = parser.parse_args()
    arguments.state = arguments.state.resolve()
    clock, step = Clock(arguments.seconds), arguments.step
    if step == "all":
        print_plan(arguments.minutes)
    if step in ("search", "all"):
        search(arguments, clock)
    if step in ("sizes", "all"):
        sizes(arguments.state, clock)
    if step in ("kernelbench", "all"):
        kernelbench(arguments.state, arguments.checkout and arguments.checkout.resolve(), clock)
    if step in ("columns", "all"):
        columns(arguments.state, clock)
    if step == "table":
        table(arguments.state)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
