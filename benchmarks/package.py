"""Package the best kernels of a session, install the wheel in an empty folder, and check and time the wheel's
operators.

    python benchmarks/package.py SESSION PROBLEM... [--calls 60] [--folder FOLDER]

The script prints one table. Exit status 1: a check failed. The script needs an idle machine with the session's device.

- The checks run in a process that sees torch and the installed package, but not kernel-tui. They are PyTorch's
  ``opcheck``, ``torch.compile(fullgraph=True)`` of a model that contains the kernel, and a call with a
  shape that has no kernel.
- The times come from a second process that also has the judge's buffers, inputs, cache flushes and clocks. In random
  order and on the same inputs, the process calls eager, the operator, and the library's function. The library's
  function writes into existing buffers, as in the judge. A warm-up call precedes each timed call.
- "host" is the time that an operator's call takes on the processor, while the GPU is busy with earlier calls.

Ratios are medians of the rounds' ratios with their 95% intervals, except for the ratio to the verdict.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.headline import kernel_tui, versions  # noqa: E402
from engine.config.tolerance import DEFAULT, largest_error, tolerance_caption, tolerance_of  # noqa: E402
from engine.evaluation.judge.messages import JudgeSettings  # noqa: E402
from engine.evaluation.judge_process import child_environment  # noqa: E402
from engine.problem.spec import ProblemSpec  # noqa: E402
from engine.session.state.session_state import fold  # noqa: E402
from engine.session.store import SessionPaths, SessionReader  # noqa: E402

PACKAGE = "kernel_tui_winners"
WARM_UP = 3
"""Number of untimed rounds before the timed rounds."""
QUEUED = 20
"""Number of consecutive calls over which the script measures the time on the processor. A GPU's queue holds many more
calls.
"""
CLOSE = 1e-2
"""Allowed relative difference between the operator and a direct call. In kernels with atomics, the order of summation
varies between calls.
"""

CHECK = """
import contextlib, importlib, importlib.util, json, sys
order = json.loads(sys.argv[1])
sys.path = [order["site"], *sys.path, *order["libraries"]]
hidden = [name for name in ("kernel_tui", "engine") if importlib.util.find_spec(name) is None]
assert hidden == ["kernel_tui", "engine"], "kernel-tui is visible, so this is no clean environment"
import torch
package = importlib.import_module(order["package"])
names = package.__all__

class Small(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.scale = kernel, torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, *inputs):
        return self.scale * self.kernel(*inputs)

def error(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype, (found.shape, found.dtype)
    found, expected = found.float(), expected.float()
    return float(((found - expected).abs() / (expected.square().mean().sqrt() + expected.abs())).max())

def attempt(check):
    try:
        return check()
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem).strip().splitlines()[0] if str(problem) else ''}"

def checked(name, kind, tolerance, device):
    module = importlib.import_module(f"{order['package']}.{name}")
    operator = module.OPERATOR
    reference = importlib.import_module(f"{order['package']}.{name}_reference")
    ran, launch = [], operator._launch
    operator._launch = lambda *given: (ran.append(1), launch(*given))[1]
    torch.manual_seed(42)
    with torch.device(device):
        model = getattr(package, kind)()
        plain = reference.Model(*getattr(reference, "get_init_inputs", list)())
        inputs = [one.to(device) if isinstance(one, torch.Tensor) else one for one in reference.get_inputs()]
    plain.load_state_dict(model.state_dict())
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    given = (*tensors, *(state[one.key].detach() for one in operator.tensors[len(tensors):]))

    def opcheck():
        found = torch.library.opcheck(getattr(getattr(torch.ops, order["package"]), name), given, raise_exception=False)
        failed = [f"{test}: {result}" for test, result in found.items() if result != "SUCCESS"]
        return "; ".join(failed).splitlines()[0] if failed else f"passes {len(found)} tests"

    def compiled():
        small = Small(model).to(device)
        whole = torch.compile(small, fullgraph=True, backend=order["backend"])
        whole(*inputs)
        before = len(ran)
        off = error(whole(*inputs), small.scale * plain(*inputs))
        assert len(ran) == before + 1, f"the kernel ran {len(ran) - before} times in one call"
        assert off <= tolerance, f"error {off:.2g}, tolerance {tolerance:g}"
        return f"right, error {off:.1e}"

    def other_shape():
        half = len(tensors[0]) // 2
        for cut in (lambda one: one[:half], lambda one: one[..., : one.shape[-1] // 2]):
            for several in (False, True):
                other = [cut(one) if one is tensors[0] or several and isinstance(one, torch.Tensor) else one
                         for one in inputs]
                with contextlib.suppress(Exception):
                    expected = plain(*other)
                    break
            else:
                continue
            break
        else:
            return "none that the model accepts"
        before = len(ran)
        found = model(*other)
        assert len(ran) == before, "the kernel ran"
        assert torch.equal(found, expected), f"differs from the reference: {error(found, expected):.2g}"
        return f"the reference, {list(other[0].shape)}"

    with torch.no_grad():
        return {"opcheck": attempt(opcheck), "compile": attempt(compiled), "other_shape": attempt(other_shape)}

for name, tolerance in order["problems"]:
    kind = names[names.index(name) - 1]
    print(json.dumps({"name": name, **checked(name, kind, tolerance, order["device"])}), flush=True)
    if order["device"] == "cuda":
        torch.cuda.empty_cache()
"""
"""The code of the process without kernel-tui. The process prints one line of JSON per problem."""


def libraries() -> list[str]:
    """Return the folders with torch and its dependencies. The checks ignore links to checkouts (``.pth`` files) in
    these folders.
    """
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def install(session: Path, problems: list[str], folder: Path) -> Path:
    """Export the wheel and install it in an empty folder. Return that folder."""
    best = [argument for problem in problems for argument in ("--best", problem)]
    exported = kernel_tui("export", session.resolve(), *best, "--package", PACKAGE, "-o", folder, folder=folder)
    if exported.returncode:
        sys.exit("the export failed; see its message above")
    (wheel,) = folder.glob(f"{PACKAGE}-*.whl")
    site = folder / "site"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--upgrade", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True)
    return site


def check_all(order: dict[str, Any], seconds: float) -> dict[str, dict[str, str]]:
    """Run the checks in a process without kernel-tui, for at most ``seconds``.

    Return the results by the operator's name.
    """
    command = [sys.executable, "-I", "-S", "-c", CHECK, json.dumps(order)]
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, env=environment, text=True, timeout=seconds, check=False, cwd="/"
        )
        output = done.stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    results = [json.loads(line) for line in output.splitlines() if line.startswith('{"name"')]
    return {one.pop("name"): one for one in results}


# --- times --------------------------------------------------------------------------------------------------------


def time_all(
    settings: JudgeSettings, problems: dict[str, ProblemSpec], site: Path, calls: int
) -> dict[str, dict[str, Any]]:
    """Time the operators in a separate process. Return the results by the operator's name."""
    order = {"settings": settings, "problems": problems, "site": str(site), "calls": calls}
    command = [sys.executable, __file__, "--time"]
    done = subprocess.run(
        command, input=msgspec.json.encode(order), stdout=subprocess.PIPE, env=child_environment(settings), check=False
    )
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b'{"name"')]
    return {one.pop("name"): one for one in results}


class TimeOrder(msgspec.Struct):
    """Input of the timing process. ``problems``: the problems by the names of their operators."""

    settings: JudgeSettings
    problems: dict[str, ProblemSpec]
    site: str
    calls: int


def time_here() -> None:
    """Read a ``TimeOrder`` from standard input, and time the operators. Print one line of JSON per operator."""
    import torch

    from engine.evaluation.judge.device_lock import alone
    from engine.evaluation.judge_device import JudgeDevice

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=TimeOrder)
    sys.path.append(order.site)
    settings = order.settings
    with alone(settings.device_id, lambda: False), torch.no_grad():
        device = JudgeDevice(settings.kind, settings.threads)
        for name, problem in order.problems.items():
            operator = importlib.import_module(f"{PACKAGE}.{name}").OPERATOR
            found = time_operator(operator, problem, device, settings.trials, order.calls)
            print("\n" + json.dumps({"name": name, **found}), flush=True)


def time_operator(operator: Any, problem: ProblemSpec, device: Any, trials: int, calls: int) -> dict[str, Any]:
    """Time the library, the operator and eager on the judge's buffers, in random order."""
    import torch

    from engine.evaluation.correctness import comparison
    from engine.evaluation.correctness.trials import JudgedProblem
    from engine.evaluation.timing.statistics import median_interval

    judged = JudgedProblem(problem, device, trials)
    slots = judged.arena.slots
    call = getattr(getattr(torch.ops, PACKAGE), operator.name.partition("::")[2])

    def given(slot: Any) -> tuple[Any, ...]:
        return (*slot.inputs, *slot.weights)

    judged.trial(0).load(slots[0])
    made = call(*given(slots[0]))  # loads the library
    scratch = torch.empty(operator._workspace, dtype=torch.uint8, device=device.kind) if operator._workspace else None
    stream = (torch.cuda.current_stream().cuda_stream,) if device.cuda else ()

    def addresses(slot: Any) -> tuple[Any, ...]:
        buffers = [one.data_ptr() for one in (*given(slot), *slot.outputs)]
        return (*buffers, scratch.data_ptr() if scratch is not None else None, *stream)

    places = [addresses(slot) for slot in slots]
    ways: dict[str, Callable[[int], object]] = {
        "direct": lambda place: operator._entry(*places[place]),
        "operator": lambda place: call(*given(slots[place])),
        "eager": lambda place: judged.run(slots[place]),
    }
    ways["direct"](0)
    different = comparison.compare([made] if len(slots[0].outputs) == 1 else list(made), slots[0].outputs, CLOSE)
    assert different.problem is None, f"the operator and the library differ: {different.problem}"
    del made
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-WARM_UP, calls):
        place = random.randrange(len(slots))
        judged.load_mixed(max(number, 0), slots[place], judged.fresh_seed())
        judged.bind(slots[place])
        device.synchronize()
        for way in random.sample(list(ways), len(ways)):
            one = partial(ways[way], place)
            one()
            took_ms = device.time_ms(one)
            if number >= 0:
                times[way].append(took_ms)
    ratios = [ours / theirs for ours, theirs in zip(times["operator"], times["direct"], strict=True)]
    result: dict[str, Any] = {way: median(found) for way, found in times.items()}
    result |= {"ratio": median_interval(ratios), "host_us": host_us(device, partial(ways["operator"], 0))}
    judged.close()
    return result


def host_us(device: Any, call: Callable[[], object]) -> float | None:
    """Return the host's microseconds per call while the GPU is busy; None on a CPU."""
    if not device.cuda:
        return None
    device.synchronize()
    started = time.perf_counter()
    for _ in range(QUEUED):
        call()
    spent_s = time.perf_counter() - started
    device.synchronize()
    return spent_s / QUEUED * 1e6


# --- table --------------------------------------------------------------------------------------------------------

COLUMNS = ("problem", "verdict ms", "direct ms", "operator ms", "eager ms", "operator / direct", "operator / verdict",
           "host us", "opcheck", "torch.compile(fullgraph=True)", "another shape")  # fmt: skip


def row(problem: str, verdict_ms: float | None, times: dict[str, Any] | None, checks: dict[str, str] | None) -> str:
    """Return a line of the table."""
    cells = [problem, f"{verdict_ms:.4f}" if verdict_ms is not None else "-"]
    if times is None:
        cells += ["-"] * 6
    else:
        middle, low, high = times["ratio"]
        against = f"{times['operator'] / verdict_ms:.3f}" if verdict_ms else "-"
        cells += [f"{times[way]:.4f}" for way in ("direct", "operator", "eager")]
        cells += [f"{middle:.3f} [{low:.3f}, {high:.3f}]", against]
        cells.append("-" if times["host_us"] is None else f"{times['host_us']:.0f}")
    cells += ["-"] * 3 if checks is None else [checks[name] for name in ("opcheck", "compile", "other_shape")]
    return f"| {' | '.join(cells)} |"


def passed(checks: dict[str, str] | None) -> bool:
    """Return whether all of an operator's checks passed."""
    good = {"opcheck": "passes", "compile": "right", "other_shape": ("the reference", "none")}
    return checks is not None and all(checks[name].startswith(start) for name, start in good.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("session", type=Path, help="the session's folder")
    parser.add_argument("problems", nargs="+", metavar="PROBLEM", help="problems of the session with a correct kernel")
    parser.add_argument("--calls", type=int, default=60, help="number of timed calls of each function")
    parser.add_argument("--backend", default="inductor", help="torch.compile's backend")
    parser.add_argument(
        "--check-seconds", type=float, default=300.0, help="time limit for the checks, which call torch.compile"
    )
    parser.add_argument("--folder", type=Path, help="folder for the wheel and its installation (default: temporary)")
    if sys.argv[1:] == ["--time"]:
        time_here()
        return
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        sys.exit(measure(arguments, folder))


def measure(arguments: argparse.Namespace, folder: Path) -> int:
    """Package, time and check the kernels. Print the table. Return the exit code."""
    with SessionReader(SessionPaths.at(arguments.session)) as reader:
        state = fold(reader.read(without=("variant_stage", "log_line")))
        tolerance = tolerance_of(state.config, reader.text)
    device = next(iter(state.devices.values()))
    began = time.monotonic()
    site = install(arguments.session, arguments.problems, folder)
    (exported,) = [node.value for node in ast.parse((site / PACKAGE / "__init__.py").read_text()).body
                   if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]  # fmt: skip
    # ``__all__`` lists a class and a function for each kernel.
    names = dict(zip(arguments.problems, ast.literal_eval(exported)[1::2], strict=True))
    specs = {problem: state.problems[problem].spec for problem in names}
    print(f"{device.name}; {versions()}; {tolerance_caption(tolerance)}", flush=True)
    print(f"installed the wheel of {len(names)} kernels in {time.monotonic() - began:.1f} s", flush=True)
    threads = len(os.sched_getaffinity(0))
    settings = JudgeSettings(device.kind, device.id, device.name, threads, 3, 1, 60.0, 0, 1e-2, 1e-2, isolate=False)
    began = time.monotonic()
    times = time_all(settings, {names[one]: spec for one, spec in specs.items()}, site, arguments.calls)
    for problem, name in names.items():
        found = {one: round(value, 4) for one, value in times.get(name, {}).items() if isinstance(value, float)}
        print(f"{problem}: {found}", flush=True)
    print(f"timed in {time.monotonic() - began:.1f} s", flush=True)
    began = time.monotonic()
    allowed = [
        (names[one], max(largest_error(tolerance or DEFAULT, out.dtype) for out in spec.outputs))
        for one, spec in specs.items()
    ]
    order = {"site": str(site), "libraries": libraries(), "package": PACKAGE, "problems": allowed}
    order |= {"device": device.kind, "backend": arguments.backend}
    checks = check_all(order, arguments.check_seconds)
    print(f"checked in {time.monotonic() - began:.1f} s; {arguments.calls} calls of each function\n", flush=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for problem, name in names.items():
        best = state.variants[str(state.problems[problem].best)]
        print(row(problem, best.kernel_ms, times.get(name), checks.get(name)))
    return 0 if all(name in times and passed(checks.get(name)) for name in names.values()) else 1


if __name__ == "__main__":
    main()
