"""Compare our judge with KernelBench's evaluator: verdicts and times of exported kernels.

    python benchmarks/kernelbench_agreement.py CHECKOUT [--trials 100] [--keep DIRECTORY]

CHECKOUT is an unmodified clone of https://github.com/ScalingIntelligence/KernelBench. The benchmark calls KernelBench's
``eval_kernel_against_ref`` with defaults (5 correctness trials, CUDA events, cold cache) and
``validate_kernel_static``. The kernels are the playbook's kernels for six problems, and corrupted copies.
``engine.export.kernelbench`` exports each kernel, and ``load_inline`` builds all exports in parallel. Then both
evaluators judge the kernels.

The script prints one table, which also shows our verdict by our own rules. Exit status 1: our verdict by KernelBench's
rules differs from KernelBench's verdict, or a time above 0.1 ms differs by more than 5%. The script needs a GPU and
nvcc.

Empty modules replace missing packages that KernelBench imports for its language models.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.devices.fact import DeviceFact  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.export.kernelbench import solution  # noqa: E402
from engine.problem.c_header import derive_header, prototype  # noqa: E402
from engine.problem.catalog import inspect_files  # noqa: E402
from engine.problem.names import ProblemFile  # noqa: E402
from engine.problem.spec import ProblemSpec  # noqa: E402
from engine.proposers.playbook.patterns import PATTERNS  # noqa: E402
from engine.proposers.playbook.transformations.catalog import apply  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402

COMPARED_ABOVE_MS, APART = 0.1, 0.05
ANSWER = "answer: "
UNNEEDED = ("datasets", "dotenv", "litellm", "modal", "openai", "tomli", "tqdm", "requests")

PROBLEMS = {
    "softmax": ("", "return torch.softmax(x, dim=1)", "torch.randn(4096, 16384)"),
    "layernorm": ("self.norm = torch.nn.LayerNorm(16384)", "return self.norm(x)", "torch.randn(4096, 16384)"),
    "rmsnorm": (
        "self.weight = torch.nn.Parameter(torch.rand(8192))",
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
        "torch.randn(8192, 8192)",
    ),
    "gelu": ("", "return torch.nn.functional.gelu(x)", "torch.randn(8192, 8192)"),
    "relu": ("", "return torch.relu(x)", "torch.rand(8192, 8192)"),
    "swiglu": ("", "return torch.nn.functional.silu(x) * y", "torch.randn(4096, 8192), torch.randn(4096, 8192)"),
}

SPOILED = {
    "one element off": "__global__ void spoil(float* out) { out[1234] = 2.0f * out[1234] + 1.0f; }",
    "half a percent off": (
        "__global__ void spoil(float* out) {\n"
        "    for (long long i = threadIdx.x; i < out_numel; i += 1024) out[i] *= 1.005f;\n}"
    ),
    "a single NaN": '__global__ void spoil(float* out) { out[out_numel - 1] = nanf(""); }',
    "zeros at the end": "__global__ void spoil(float* out) { out[out_numel - 1 - threadIdx.x] = 0.0f; }",
    "illegal address": "__global__ void spoil(float* out) { out[1LL << 50] = 0.0f; }",
}
COPY = """
extern "C" int launch(const float* x, float* out, void* workspace, cudaStream_t stream) {
    return cudaMemcpyAsync(out, x, x_numel * sizeof(float), cudaMemcpyDeviceToDevice, stream);
}
__global__ void unused() {}
"""


@dataclass(frozen=True)
class Kernel:
    problem: ProblemSpec
    name: str
    source: str


async def problems(directory: Path) -> list[ProblemSpec]:
    files: list[ProblemFile | Path] = []
    for name, (init, forward, inputs) in PROBLEMS.items():
        arguments = ", ".join(["x", "y"][: inputs.count("rand")])
        lines = ["import torch", "class Model(torch.nn.Module):"]
        lines += ["    def __init__(self):", "        super().__init__()", f"        {init}"] if init else []
        lines += [f"    def forward(self, {arguments}):", f"        {forward}"]
        lines += ["def get_inputs():", f"    return [{inputs}]", "def get_init_inputs():", "    return []"]
        path = directory / f"{name}.py"
        path.write_text("\n".join(lines) + "\n")
        files.append(ProblemFile(name, path))
    found = await inspect_files(files)
    assert all(isinstance(one, ProblemSpec) for one in found), found
    return [one for one in found if isinstance(one, ProblemSpec)]


def right(problem: ProblemSpec, device: DeviceFact, count: int) -> list[str]:
    """Return the playbook's first kernel, and further kernels that each add a transformation."""
    for pattern in PATTERNS:
        if (program := pattern.recognize(problem)) is None:
            continue
        template = next(one for one in pattern.templates if one.language == "cu" and not one.refusal(program))
        recipe = template.starts(program, problem, device)[-1].recipe
        found = [template.emit(program, recipe, problem)]
        while len(found) < count and (transformations := template.transformations(program, recipe, device)):
            recipe = apply(recipe, transformations[0])
            found.append(template.emit(program, recipe, problem))
        return list(dict.fromkeys(found))
    raise AssertionError(f"the playbook has no kernel for {problem.id}")


def spoiled(problem: ProblemSpec, source: str, spoil: str) -> str:
    """Return ``source`` with a ``launch`` that runs the kernel and then corrupts its output."""
    declared = prototype(problem, "cu").removesuffix(";")
    names = [part.split()[-1].lstrip("*") for part in declared.split("(")[1].rstrip(")").split(",")]
    call = f"    const int code = inner_launch({', '.join(names)});"
    inner = declared.replace(" launch(", " inner_launch(") + ";"
    spoiling = f"    spoil<<<1, {1024 if '1024' in spoil else 64}, 0, stream>>>(out);"
    lines = [inner, "#define launch inner_launch", source, "#undef launch", spoil, declared + " {", call, spoiling]
    return "\n".join([*lines, "    return code;", "}", ""])


def kernels(found: list[ProblemSpec], device: DeviceFact) -> list[Kernel]:
    made = []
    for problem in found:
        sources = right(problem, device, 3)
        made += [Kernel(problem, f"right {number}", source) for number, source in enumerate(sources)]
        if problem.id in ("softmax", "gelu"):
            for name, text in SPOILED.items():
                made.append(Kernel(problem, name, spoiled(problem, sources[0], text)))
        if problem.id == "relu":
            made.append(Kernel(problem, "copies its input", COPY))
    return [*made, Kernel(found[0], "does not compile", "__global__ void broken( {")]


def judge_theirs(checkout: Path, files: list[Path], trials: int, precision: str = "fp32") -> list[dict[str, Any]]:
    """Run a child that imports KernelBench and forks for each solution, because a kernel can break its process's CUDA
    context.

    ``precision``: the dtype of the inputs, as KernelBench names it ("fp32", "fp16", "bf16").
    """
    command = [sys.executable, __file__, str(checkout), "--trials", str(trials), "--precision", precision, "--theirs"]
    command += map(str, files)
    answers: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(ANSWER):
                answers.append(json.loads(line.removeprefix(ANSWER)))
                print(f"KernelBench: {len(answers)} of {len(files)}", file=sys.stderr)
    return answers


def theirs(checkout: Path, files: list[Path], trials: int, precision: str) -> None:
    """Run KernelBench's two functions on each solution, in the child. The child prints one line of JSON for each
    solution."""
    import importlib.util
    import multiprocessing
    from types import ModuleType

    class Absent(ModuleType):
        def __getattr__(self, name: str) -> Any:
            """Return a function that does nothing."""
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *arguments, **named: None

    for name in UNNEEDED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = Absent(name)
    sys.path.insert(0, str(checkout / "src"))
    import torch  # noqa: F401  (slow; KernelBench's own import asks for the GPU, and CUDA does not survive a fork)

    processes = multiprocessing.get_context("fork")
    for file in files:
        receiving, sending = processes.Pipe(duplex=False)
        process = processes.Process(target=one, args=(file, trials, precision, sending))
        process.start()
        sending.close()
        try:
            answer = receiving.recv()
        except EOFError:
            answer = {
                "compiled": None,
                "correct": False,
                "valid": None,
                "note": "KernelBench's process ended without a result",
            }
        process.join(20)
        process.kill()
        print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


def one(file: Path, trials: int, precision: str, answer: Any) -> None:
    """Send KernelBench's result for one solution to ``answer``."""
    import torch
    from kernelbench.eval import eval_kernel_against_ref  # type: ignore[import-not-found]
    from kernelbench.kernel_static_checker import validate_kernel_static  # type: ignore[import-not-found]

    text = file.read_text()
    valid, errors, _ = validate_kernel_static(text, backend="cuda", precision=precision)
    result = eval_kernel_against_ref(
        file.with_suffix(".ref").read_text(),
        text,
        num_correct_trials=5,
        num_perf_trials=trials,
        measure_performance=True,
        build_dir=str(file.parent),
        device=torch.device("cuda:0"),
        precision={"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision],
    )
    note = str({key: str(value)[:200] for key, value in result.metadata.items() if "error" in key or "issue" in key})
    says = {"compiled": result.compiled, "correct": result.correctness, "valid": valid, "ms": result.runtime}
    says |= {"reference_ms": result.ref_runtime, "note": note if not result.correctness else "; ".join(errors)}
    answer.send(says)


def build(file: Path) -> None:
    """Build a solution into the directory that the evaluator will use."""
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(file.parent), "TORCH_USE_CUDA_DSA": "1", "MAX_JOBS": "2"}
    subprocess.run([sys.executable, str(file)], env=environment, capture_output=True, timeout=600, check=False)


async def judge_ours(made: list[Kernel], evaluator: LocalEvaluator) -> list[Verdict]:
    verdicts: list[Verdict] = []
    opened: set[str] = set()
    for kernel in made:
        if kernel.problem.id not in opened:
            await evaluator.open(kernel.problem, derive_header(kernel.problem, "cu"))
            opened.add(kernel.problem.id)
        verdicts.append(await evaluator.evaluate(kernel.problem, "cu", kernel.source, lambda stage: None))
        print(f"our judge: {len(verdicts)} of {len(made)}", file=sys.stderr)
    return verdicts


async def measure(checkout: Path, directory: Path, trials: int) -> int:
    evaluator = LocalEvaluator(EvaluationConfig(device="cuda", tolerance="kernelbench"), directory)
    device = (await evaluator.start())[0]
    try:
        made = kernels(await problems(directory), device)
        files = []
        for number, kernel in enumerate(made):
            home = directory / f"{number:02d}"
            home.mkdir()
            file = home / "solution.py"
            file.write_text(solution(kernel.problem, "cu", kernel.source, f"{kernel.name}."))
            file.with_suffix(".ref").write_text(kernel.problem.source)
            files.append(file)
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2)) as pool:
            built = pool.map(build, files)  # The builds run in parallel with the judge's compilers.
            ours = await judge_ours(made, evaluator)
            list(built)
    finally:
        await evaluator.close()
    return show(made, ours, judge_theirs(checkout, files, trials), device.name)


def show(made: list[Kernel], ours: list[Verdict], found: list[dict[str, Any]], device: str) -> int:
    print(f"{device}; {len(made)} kernels\n")
    head = f"{'problem':10} {'kernel':20} {'strict':12} {'kernelbench':12} {'KernelBench':12} {'checker':8}"
    print(f"{head} {'ours ms':>9} {'theirs':>9} {'ratio':>7}")
    differing = apart = compared = 0
    for kernel, verdict, their in zip(made, ours, found, strict=True):
        says = "correct" if their["correct"] else "wrong" if their["compiled"] else "not built"
        mine = verdict.kernel.median_ms if verdict.kernel is not None else None
        his = their.get("ms") if their["correct"] else None
        second = verdict.kernelbench.status if verdict.kernelbench is not None else "none"
        same = (second == "correct") == bool(their["correct"])
        differing += not same
        remark = "" if same else "  differs"
        ratio = his / mine if his and mine else None
        if ratio is not None and mine is not None and mine > COMPARED_ABOVE_MS:
            compared += 1
            apart += abs(ratio - 1) > APART
        checker = {True: "accepts", False: "REFUSES", None: "-"}[their["valid"]]
        cells = f"{mine:9.4f}" if mine is not None else f"{'-':>9}"
        cells += f" {his:9.4f}" if his else f" {'-':>9}"
        cells += f" {ratio:7.3f}" if ratio is not None else f" {'-':>7}"
        said = f"{verdict.status:12} {second:12} {says:12} {checker:8}"
        print(f"{kernel.problem.id:10} {kernel.name:20} {said} {cells}{remark}")
        for words in (verdict.reason, str(their.get("note") or "")):
            if words and not (same and verdict.correct == bool(their["correct"])):
                print(f"    {words[:200]}")
    refused = sum(their["valid"] is False for their in found)
    print(f"\n{differing} of {len(made)} verdicts by KernelBench's rules differ from KernelBench's own")
    print(f"{apart} of {compared} times above {COMPARED_ABOVE_MS} ms differ by more than {APART:.0%}")
    print(f"{refused} solutions that the static checker rejects")
    return int(bool(differing or apart or refused))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of KernelBench")
    parser.add_argument("--trials", type=int, default=100, help="number of timed calls per kernel in KernelBench")
    parser.add_argument("--keep", type=Path, help="keep the solutions and their builds in this new directory")
    parser.add_argument("--precision", default="fp32", help=argparse.SUPPRESS)
    parser.add_argument("--theirs", type=Path, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    checkout = arguments.checkout.resolve()
    if arguments.theirs is not None:
        theirs(checkout, arguments.theirs, arguments.trials, arguments.precision)
        return
    if not (checkout / "src" / "kernelbench" / "eval.py").is_file():
        sys.exit(f"{checkout} is not a clone of KernelBench: src/kernelbench/eval.py is missing")
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
        sys.exit(asyncio.run(measure(checkout, arguments.keep.resolve(), arguments.trials)))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(asyncio.run(measure(checkout, Path(directory), arguments.trials)))


if __name__ == "__main__":
    main()
