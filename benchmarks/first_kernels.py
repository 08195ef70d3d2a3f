"""Check the playbook's first C++ kernel of many problems at reduced sizes, or write the problems at those sizes.

    python benchmarks/first_kernels.py check PATH... [--json FILE]   # needs g++ but no GPU
    python benchmarks/first_kernels.py shrink DIR PATH...            # writes the problems with their reduced sizes

KernelBench's problems have sizes for large GPUs. This script reduces the sizes until no tensor has more than
``ELEMENTS`` elements and the problem needs at most ``FLOPS`` operations. A first kernel is correct if the error of each
output, against float64 PyTorch, is within one of two limits. The limits are ``LIMIT`` times the output's largest
element, and ``EAGER_ERRORS`` times the error of float32 PyTorch. Each problem has its own process, so that a crash or a
hang counts as one wrong kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.problem.spec import ProblemSpec

ROOT = Path(__file__).resolve().parent.parent
ELEMENTS = 2e6
FLOPS = 5e8
LARGEST = 20.0
"""Multiplier for both limits of a problem whose model fixes most sizes."""
LIMIT = 2e-5
"""Largest error of a correct kernel, relative to the output's largest element."""
EAGER_ERRORS = 20
"""Largest error of a correct kernel, as a multiple of float32 PyTorch's error: an alternative to ``LIMIT``."""
SECONDS = 150.0
"""Time limit for one problem, in seconds."""
STEPS = 40
"""Maximum number of times to reduce one problem's sizes."""


def shrunk(path: Path) -> ProblemSpec:
    """Return the problem at reduced sizes. Raises the errors that the file raises at its own sizes."""
    from engine.problem.inspection import inspect_file
    from engine.problem.sizes import with_sizes

    spec = inspect_file(path, "problem")
    for _ in range(STEPS):
        if _is_small(spec):
            break
        for sizes in _smaller(spec.source):
            try:
                smaller = inspect_file(path, "problem", with_sizes(spec.source, sizes))
            except Exception:  # the model rejects these sizes
                continue
            if _work(smaller) < _work(spec) and _kinds(smaller) == _kinds(spec):
                spec = smaller
                break
        else:
            break
    return spec


def _is_small(spec: ProblemSpec, times: float = 1.0) -> bool:
    return _elements(spec) <= ELEMENTS * times and (spec.flops or 0) <= FLOPS * times


def _elements(spec: ProblemSpec) -> float:
    return max((float(_product(one.shape)) for one in spec.tensors), default=0.0)


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _work(spec: ProblemSpec) -> float:
    return _elements(spec) / ELEMENTS + (spec.flops or 0) / FLOPS


def _kinds(spec: ProblemSpec) -> Counter[str]:
    """Return the model's operators, to detect whether a reduced size changes the problem."""
    return Counter(node.op for node in spec.graph) if spec.graph is not None else Counter()


def _smaller(source: str) -> Iterator[dict[str, int]]:
    """Yield sizes to try: all large sizes halved, then one size halved at a time, the largest first."""
    from engine.problem.sizes import scalable, sizes_of

    known = {name: value for name, value in scalable(sizes_of(source)).items() if value > 2}
    halved = {name: _half(value) for name, value in known.items()}
    yield halved
    for name in sorted(known, key=lambda one: -known[one]):
        yield {name: halved[name]}


def _half(value: int) -> int:
    return value // 2 if value % 2 == 0 else (value + 1) // 2


def write_shrunk(folder: Path, paths: list[Path]) -> None:
    """Write each problem at its reduced sizes. Print one line for each problem that stays large or fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        try:
            spec = shrunk(path)
        except Exception as error:
            print(f"{path}: {error}")
            continue
        (folder / path.name).write_text(spec.source)
        if not _is_small(spec):
            print(f"{path}: {_elements(spec):.1e} elements, {spec.flops or 0:.1e} operations", flush=True)


# --- check --------------------------------------------------------------------------------------------------------


def check_one(path: Path) -> dict[str, Any]:
    """Build and run the first C++ kernel of one problem. Return its status and the largest error."""
    import numpy as np
    import torch

    from engine.devices.fact import DeviceFact
    from engine.problem.source import ProblemModule
    from engine.proposers.playbook.base import Unsupported
    from engine.proposers.playbook.codegen.parameters import with_header_constants, with_own_parameters
    from engine.proposers.playbook.patterns import PATTERNS
    from tests.engine.proposers.playbook.cpp_harness import Problem, build, run

    torch.set_num_threads(1)
    try:
        spec = shrunk(path)
    except Exception as error:
        return {"status": "not opened", "why": f"{type(error).__name__}: {error}"[:300]}
    found: dict[str, Any] = {"elements": _elements(spec), "flops": spec.flops}
    if not _is_small(spec, LARGEST):
        return {**found, "status": "too large"}
    if spec.c_refusal is not None:
        return {**found, "status": "no template", "why": spec.c_refusal}
    device, own = DeviceFact("cpu", "cpu", "", "", 0, 2), with_own_parameters(spec)
    why = "no pattern matches the problem"
    for pattern in PATTERNS:
        try:
            program = pattern.recognize(own)
        except Unsupported as error:
            why = str(error)
            continue
        template = next((one for one in pattern.templates if one.language == "cpp"), None)
        if program is not None and template is not None:
            break
    else:
        return {**found, "status": "no template", "why": why}
    if (refusal := template.refusal(program)) is not None:
        return {**found, "status": "no template", "why": refusal}
    start = template.starts(program, own, device)[0]
    source = with_header_constants(template.emit(program, start.recipe, own), own)
    found |= {"pattern": pattern.name, "start": start.name}
    module = ProblemModule(spec.source, str(path))
    torch.manual_seed(42)
    model = module.model_class(*module.get_init_inputs())
    given = torch.utils._pytree.tree_leaves(module.get_inputs())
    inputs = [one.detach() for one in given if isinstance(one, torch.Tensor)]
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    ordered = [named[one.source_name or one.name] for one in spec.weights]
    problem = Problem(spec, inputs, [one.detach().clone() for one in ordered], model)
    with tempfile.TemporaryDirectory() as folder:
        outputs = run(problem, build(Path(folder), spec, source, optimize="-O1"))
    eager = _expected(problem, given, torch.float32)
    wanted = _expected(problem, given, torch.float64)
    errors = []
    for mine, theirs, exact in zip(outputs, eager, wanted, strict=True):
        size = float(np.abs(exact).max()) if exact.size else 0.0
        off, usual = (float(np.abs(one - exact).max()) if exact.size else 0.0 for one in (mine, theirs))
        errors.append(off / max(LIMIT * size, EAGER_ERRORS * usual, 1e-30))
    worst = max((one if one == one else float("inf") for one in errors), default=0.0)
    return {**found, "status": "correct" if worst <= 1 else "wrong", "error": worst}


def _expected(problem: Any, arguments: list[Any], dtype: Any) -> list[Any]:
    """Return PyTorch's outputs in one precision, followed by the buffers that the model writes."""
    import torch

    model = problem.model.to(dtype)
    buffers = dict(model.named_buffers())
    written = []
    with torch.no_grad():
        for spec, weight in zip(problem.spec.weights, problem.weights, strict=True):
            if spec.mutated:
                buffer = buffers[spec.source_name or spec.name]
                buffer.copy_(weight)
                written.append(buffer)
        floats = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in arguments]
        result = model(*(one.to(dtype) if is_float else one for one, is_float in zip(arguments, floats, strict=True)))
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    return [one.detach().clone().numpy() for one in (*outputs, *written)]


def check(paths: list[Path], target: Path | None, workers: int) -> int:
    """Check all problems. Print one line for each problem, and the totals. Return the number of wrong kernels."""
    rows = {}
    with ThreadPoolExecutor(workers) as pool:
        for path, row in zip(paths, pool.map(_in_process, paths), strict=True):
            rows[str(path)] = row
            print(f"{path.parent.name}/{path.stem[:50]:50} {row['status']:12} {row.get('pattern', ''):10} "
                  f"{row.get('error', float('nan')):8.1e} {row['seconds']:5.1f} s  {row.get('why', '')[-200:]}",
                  flush=True)  # fmt: skip
    if target is not None:
        target.write_text(json.dumps(rows, indent=1) + "\n")
    for level in dict.fromkeys(path.parent.name for path in paths):
        counts = Counter(row["status"] for name, row in rows.items() if Path(name).parent.name == level)
        print(f"{level}: {', '.join(f'{count} {status}' for status, count in counts.most_common())}")
    return sum(row["status"] in ("wrong", "failed") for row in rows.values())


def _in_process(path: Path) -> dict[str, Any]:
    began = time.monotonic()
    command = [sys.executable, __file__, "one", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ)
        row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        row = row or {"status": "failed", "why": " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"}
    except subprocess.TimeoutExpired:
        row = {"status": "failed", "why": f"the problem's process gave no result within {SECONDS:.0f} s"}
    return {**row, "seconds": time.monotonic() - began}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    shrink = commands.add_parser("shrink")
    shrink.add_argument("folder", type=Path)
    shrink.add_argument("paths", type=Path, nargs="+")
    checked = commands.add_parser("check")
    checked.add_argument("paths", type=Path, nargs="+")
    checked.add_argument("--json", type=Path, dest="target")
    checked.add_argument("--workers", type=int, default=1)
    one = commands.add_parser("one")
    one.add_argument("path", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.command == "shrink":
        write_shrunk(options.folder, options.paths)
        return 0
    if options.command == "one":
        print(json.dumps(check_one(options.path)))
        return 0
    return 1 if check(options.paths, options.target, options.workers) else 0


if __name__ == "__main__":
    sys.exit(main())
