"""Measure correctness and speed of the playbook's CUDA templates on one GPU.

    python benchmarks/templates.py emit DIR     # writes kernels and DIR/manifest.json; runs anywhere
    python benchmarks/templates.py compile DIR  # compiles all for sm_80 and sm_90a; needs nvcc but no GPU
    python benchmarks/templates.py measure DIR  # needs a GPU, torch and nvcc, but not this package

``measure`` builds all kernels in parallel and compares each with float64 PyTorch on the same GPU. ``measure`` fills
outputs with NaN before each run. For the headline problems, it also times the kernels with CUDA events. A time is the
median of 15 calls. The script writes 256 MiB before each call, so that L2 is cold. The error is ||out - reference|| /
||reference||. The "eager" rows show PyTorch's own error. A separate process runs each problem's kernels, and restarts
after a crash or hang.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BANDWIDTH_GBS = 4300.0
"""Copy bandwidth measured on an NVIDIA H200, in GB/s (bytes read plus written)."""
HANG_S = 30.0
WANDERED = ("matmul", "conv", "attention")
WANDERINGS = 12
"""Number of random recipes for each small problem of the patterns in ``WANDERED``."""

MODULE = """\
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {weights}
    def forward(self, {arguments}):
        return {result}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""

# --- emit ---------------------------------------------------------------------------------------------------------


def emit(folder: Path, only: str) -> None:
    """Write every kernel and the manifest."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.template_problems import HEADLINE, LARGE_POINTWISE, SMALL, TF32_LIMIT, grid
    from engine.devices.fact import DeviceFact
    from engine.problem.c_header import derive_header
    from engine.problem.inspection import inspect_file
    from engine.proposers.playbook.base import Recipe
    from tests.engine.proposers.playbook.wandering import known, ladder, wander

    folder.mkdir(parents=True, exist_ok=True)
    device = DeviceFact("gpu", "cuda", "NVIDIA H200", "sm_90a", 0, 132)
    problems: list[dict[str, Any]] = []
    files = {name: ROOT / "problems/headline" / f"{name}.py" for name in HEADLINE}
    for name, (weights, result, inputs) in (SMALL | LARGE_POINTWISE).items():
        arguments = ", ".join("xyz"[: len(inputs)])
        files[name] = folder / f"{name}.py"
        files[name].write_text(
            MODULE.format(weights=weights or "pass", arguments=arguments, result=result, inputs=", ".join(inputs))
        )
    for name, path in files.items():
        if only and only not in name:
            continue
        spec = inspect_file(path, name)
        template, program = known(spec, "cu")
        timed = name in HEADLINE or name in LARGE_POINTWISE
        (folder / f"{name}.h").write_text(derive_header(spec, "cu"))
        *others, plain = template.starts(program, spec, device)
        base = plain.recipe
        kernels, seen = [], set()
        recipes = [
            (label, Recipe(template.name, {**base.choices, **{k: v for k, v in changes.items() if k in base.choices}}))
            for label, changes in grid(template.pattern, name, timed)
        ]
        recipes += [(start.name, start.recipe) for start in others]
        if template.pattern in WANDERED and not timed:
            recipes += [(str(step.choices), step) for step in ladder(template, program, spec, device)]
            found = (wander(template, program, spec, seed, device, 10) for seed in range(WANDERINGS))
            recipes += [(str(step.choices), step) for step in found]
        for number, (label, recipe) in enumerate(recipes):
            source = template.emit(program, recipe, spec)
            if source not in seen:
                seen.add(source)
                kernel: dict[str, Any] = {"label": label, "file": f"{name}_{number}.cu"}
                if "precision::tf32" in source:
                    kernel["limit"] = TF32_LIMIT
                kernels.append(kernel)
                (folder / f"{name}_{number}.cu").write_text(source)
        problems.append(
            {
                "name": name,
                "source": spec.source,
                "header": f"{name}.h",
                "weights": [t.source_name for t in spec.weights],
                "outputs": [[list(t.shape), t.dtype] for t in spec.outputs],
                "sol_ms": sum(t.nbytes for t in spec.tensors) / BANDWIDTH_GBS / 1e6,
                "timed": timed,
                "kernels": kernels,
            }
        )
    (folder / "manifest.json").write_text(json.dumps(problems, indent=1))
    print(f"{sum(len(p['kernels']) for p in problems)} kernels of {len(problems)} problems in {folder}")


# --- measure ------------------------------------------------------------------------------------------------------


def measure(folder: Path, only: str, compile_too: bool) -> int:
    """Build, check and time all kernels, and print one table. Return the number of wrong kernels."""
    problems = [p for p in json.loads((folder / "manifest.json").read_text()) if only in p["name"]]
    build = folder / "build"
    build.mkdir(exist_ok=True)
    started = time.monotonic()
    jobs = [(p, k) for p in problems for k in p["kernels"]]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        logs = list(pool.map(lambda job: _build(folder, build, *job), jobs))
    failed = 0
    for (_, kernel), log in zip(jobs, logs, strict=True):
        kernel["build_log"] = log
        if log is None:
            failed += 1
    print(f"built {len(jobs)} kernels in {time.monotonic() - started:.1f} s, {failed} failed", flush=True)
    bad = failed
    untimed = [p for p in problems if not p["timed"]]
    with ThreadPoolExecutor(6) as pool:  # correctness checks can share the device, but timing cannot
        for problem, rows in zip(untimed, pool.map(lambda p: _run_problem(folder, p), untimed), strict=True):
            bad += _print_table(problem, rows)
    for problem in problems:
        if problem["timed"]:
            bad += _print_table(problem, _run_problem(folder, {**problem, "compile": compile_too}))
    print(f"{bad} bad of {len(jobs)}")
    return bad


def compile_all(folder: Path, only: str, archs: tuple[str, ...] = ("sm_80", "sm_90a")) -> int:
    """Compile every kernel for each of ``archs``, with warnings as errors, and print one table."""
    problems = [p for p in json.loads((folder / "manifest.json").read_text()) if only in p["name"]]
    started, bad = time.monotonic(), 0

    def one(problem: dict[str, Any], file: str, arch: str) -> str:
        command = ["nvcc", "-O3", "-std=c++17", "-cubin", "-Werror", "all-warnings", f"-arch={arch}"]
        command += ["-include", str(folder / problem["header"]), str(folder / file), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        return f"{file} for {arch}: {(done.stdout + done.stderr)[-600:]}" if done.returncode else ""

    print(f"{'problem':30} {'kernels':>8} {'failed':>7} {'seconds':>8}")
    with ThreadPoolExecutor(2) as pool:
        for problem in problems:
            begun = time.monotonic()
            jobs = [
                (k["file"], arch) for k in problem["kernels"] for arch in archs if _for_arch(folder, k["file"], arch)
            ]
            logs = [log for log in pool.map(lambda job, p=problem: one(p, *job), jobs) if log]
            bad += len(logs)
            print(f"{problem['name']:30} {len(jobs):8} {len(logs):7} {time.monotonic() - begun:8.0f}", flush=True)
            for log in logs:
                print(log)
    print(f"{bad} failed in {time.monotonic() - started:.0f} s")
    return bad


def _for_arch(folder: Path, file: str, arch: str) -> bool:
    """Return whether ``arch`` supports the kernel. Clusters and bulk copies need Hopper."""
    text = (folder / file).read_text()
    return arch == "sm_90a" or not ("cluster" in text or "cp.async.bulk" in text)


def _build(folder: Path, build: Path, problem: dict[str, Any], kernel: dict[str, str]) -> str | None:
    """Return the registers and spills that ptxas reports. If the build fails, print its log and return None."""
    target = build / (kernel["file"] + ".so")
    command = ["nvcc", "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v"]
    command += ["-gencode", "arch=compute_90a,code=sm_90a", "-include", str(folder / problem["header"])]
    done = subprocess.run([*command, str(folder / kernel["file"]), "-o", str(target)], capture_output=True, text=True)
    if done.returncode:
        print(f"BUILD {kernel['file']} {kernel['label']}: {done.stderr[-500:]}")
        return None
    words = done.stderr.split()
    registers = [words[k + 1] for k, word in enumerate(words) if word == "Used"]
    spills = [words[k - 2] for k, word in enumerate(words) if word == "spill" and words[k + 1].startswith("stores")]
    spilled = [s for s in spills if s != "0"]
    return f"{'/'.join(registers)}r" + (f" spill {'/'.join(spilled)}" if spilled else "")


def _run_problem(folder: Path, problem: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each kernel's results. Start another process after each crash, until every kernel has run."""
    results: list[dict[str, Any]] = []
    waiting = [k["file"] for k in problem["kernels"] if k["build_log"] is not None]
    baseline = True
    while waiting:
        spec = {**problem, "kernels": [k for k in problem["kernels"] if k["file"] in waiting], "baseline": baseline}
        child = subprocess.Popen(
            [sys.executable, __file__, "child", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(spec))
        child.stdin.close()
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=HANG_S if results or not baseline else 4 * HANG_S)
            except queue.Empty:
                child.kill()
                line = ""
            if not line:
                break
            result = json.loads(line)
            results.append(result)
            baseline = False
            if result["file"] in waiting:
                waiting.remove(result["file"])
        child.wait()
        if waiting and (child.returncode != 0):
            results.append({"file": waiting.pop(0), "fault": f"crashed or hung (exit {child.returncode})"})
            baseline = False
    return results


def _pump(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put("")


def child(folder: Path) -> None:
    """Check and time a problem's kernels, given as JSON on standard input. Print a JSON line for each kernel."""
    import torch

    problem = json.load(sys.stdin)
    space: dict[str, Any] = {}
    exec(compile(problem["source"], problem["name"], "exec"), space)
    torch.manual_seed(7)
    model = space["Model"](*space["get_init_inputs"]()).cuda()
    with torch.device("cuda"):
        inputs = [x.cuda() for x in space["get_inputs"]()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        wanted = as_list(model.double()(*(x.double() for x in inputs)))
        model.to(inputs[0].dtype)
        weights = [model.state_dict()[n] for n in problem["weights"]]
        flush = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
        outputs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for shape, dtype in problem["outputs"]
        ]

        def timed(call: Any) -> float | None:
            if not problem["timed"]:
                return None
            times: list[float] = []
            for k in range(18):
                flush.fill_(k)
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                call()
                end.record()
                end.synchronize()
                times.append(float(start.elapsed_time(end)))
            return float(statistics.median(times[3:]))

        if problem["baseline"]:
            eager = as_list(model(*inputs))
            print(
                json.dumps(
                    {"file": "eager", "error": relative_error(eager, wanted), "ms": timed(lambda: model(*inputs))}
                ),
                flush=True,
            )
            del eager
            if problem.get("compile"):
                compiled = torch.compile(model)
                compiled(*inputs)
                print(json.dumps({"file": "compile", "error": 0.0, "ms": timed(lambda: compiled(*inputs))}), flush=True)
        for kernel in problem["kernels"]:
            library = ctypes.CDLL(str(folder / "build" / (kernel["file"] + ".so")))
            scratch = 0
            if hasattr(library, "workspace_bytes"):
                library.workspace_bytes.restype = ctypes.c_size_t
                scratch = library.workspace_bytes()
            workspace = torch.full((max(1, scratch),), 0xA5, dtype=torch.uint8, device="cuda")
            pointers = [ctypes.c_void_p(x.data_ptr()) for x in (*inputs, *weights, *outputs, workspace)]
            pointers.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            errors, codes = [], []
            for _ in range(3):
                for out in outputs:
                    out.fill_(math.nan)
                codes.append(library.launch(*pointers))
                torch.cuda.synchronize()
                errors.append(relative_error(outputs, wanted))
            result = {"file": kernel["file"], "error": max(errors, key=lambda e: math.inf if math.isnan(e) else e)}
            if any(codes):
                result["fault"] = f"launch returned {codes}"
            else:
                result["ms"] = timed(lambda library=library, pointers=pointers: library.launch(*pointers))
                result["late_error"] = relative_error(outputs, wanted)
                if len(set(errors)) > 1:
                    result["fault"] = f"error varies between runs: {errors}"
            print(json.dumps(result), flush=True)


def as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


def relative_error(found: list[Any], wanted: list[Any]) -> float:
    """Return the largest relative error of any output, in the Euclidean norm."""
    return max(float((f.double() - w).norm() / w.norm()) for f, w in zip(found, wanted, strict=True))


def _print_table(problem: dict[str, Any], rows: list[dict[str, Any]]) -> int:
    """Print a summary of a problem, then its kernels, fastest first. Without times, print only the wrong kernels.

    Return the number of wrong kernels.
    """
    by_file = {k["file"]: k for k in problem["kernels"]}
    eager = next((r["error"] for r in rows if r["file"] == "eager"), math.nan)
    limit = max(2e-6, 4 * eager)
    bad = [
        r
        for r in rows
        if r["file"] in by_file
        and not (r.get("error", math.nan) <= max(limit, by_file[r["file"]].get("limit", 0.0)) and "fault" not in r)
    ]
    sol_ms = problem["sol_ms"]
    print(f"\n{problem['name']}: SOL {sol_ms:.3f} ms, eager's error {eager:.1e}, {len(rows)} runs, {len(bad)} bad")
    shown = sorted(rows, key=lambda r: r.get("ms") or 1e9) if problem["timed"] else bad
    for r in shown:
        kernel = by_file.get(r["file"], {"label": r["file"], "build_log": ""})
        ms = r.get("ms")
        speed = f"{ms:8.4f} ms {100 * sol_ms / ms:5.1f}% SOL" if ms else " " * 23
        print(
            f"  {speed} {r.get('error', math.nan):8.1e} {kernel['label']} [{kernel['build_log']}] {r.get('fault', '')}",
            flush=True,
        )
    return len(bad)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("emit", "compile", "measure", "child"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="only problems whose name contains this text")
    parser.add_argument("--compile", action="store_true", help="also time torch.compile")
    arguments = parser.parse_args()
    if arguments.stage == "emit":
        emit(arguments.folder, arguments.only)
    elif arguments.stage == "compile":
        return 1 if compile_all(arguments.folder, arguments.only) else 0
    elif arguments.stage == "child":
        child(arguments.folder)
    else:
        return 1 if measure(arguments.folder, arguments.only, arguments.compile) else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
