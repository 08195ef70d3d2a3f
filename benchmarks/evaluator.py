"""Measure the time of a verdict, stage by stage, and compare it with ``load_inline``.

    python benchmarks/evaluator.py [--language cpp|cu] [--kernels 20] [--inline 20] [--parallel N]

The script judges distinct softmax kernels with the search's evaluator. The script then builds and checks the same
sources with ``torch.utils.cpp_extension.load_inline`` and the same parallelism. "overhead" is the time of a verdict
without the build and without the runs of the kernel and the reference. The script prints one table. The script needs an
idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from engine.config.schema import EvaluationConfig  # noqa: E402
from engine.evaluation.local_evaluator import LocalEvaluator  # noqa: E402
from engine.problem.c_header import derive_header  # noqa: E402
from engine.problem.catalog import inspect_files  # noqa: E402
from engine.problem.spec import Language, ProblemSpec  # noqa: E402
from engine.session.records.verdict import Verdict  # noqa: E402

CPP = """
#include <cmath>
static inline void row_of(const float* in, float* to) {{
    float most = -INFINITY, sum = 0;
    for (long long i = 0; i < x_dim1; i++) most = in[i] > most ? in[i] : most;
    #pragma omp simd reduction(+ : sum)
    for (long long i = 0; i < x_dim1; i++) sum += to[i] = {exp}(in[i] - most);
    for (long long i = 0; i < x_dim1; i++) to[i] /= sum;
}}
extern "C" int launch(const float* x, float* out, void*) {{
    #pragma omp parallel for schedule(static, {chunk})
    for (long long row = 0; row < x_dim0; row++) row_of(x + row * x_dim1, out + row * x_dim1);
    return 0;
}}
"""

CU = """
__global__ void rows(const float* x, float* out) {{
    __shared__ float partial[{threads}];
    const float* in = x + blockIdx.x * x_dim1;
    float* to = out + blockIdx.x * x_dim1;
    float most = -INFINITY, sum = 0;
    for (long long i = threadIdx.x; i < x_dim1; i += {threads}) most = fmaxf(most, in[i]);
    partial[threadIdx.x] = most;
    for (int half = {threads} / 2; half; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
    }}
    __syncthreads();
    most = partial[0];
    __syncthreads();
    for (long long i = threadIdx.x; i < x_dim1; i += {threads}) sum += {exp}(in[i] - most);
    partial[threadIdx.x] = sum;
    for (int half = {threads} / 2; half; half /= 2) {{
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }}
    __syncthreads();
    const float scale = 1 / partial[0];
    for (long long i = threadIdx.x; i < x_dim1; i += {threads}) to[i] = {exp}(in[i] - most) * scale;
}}
extern "C" int launch(const float* x, float* out, void*, cudaStream_t stream) {{
    rows<<<x_dim0, {threads}, 0, stream>>>(x, out);
    return 0;
}}
"""

INLINE = """
import sys, torch
from torch.utils.cpp_extension import load_inline
language, file, directory = sys.argv[1:]
source = open(file).read()
stream = "c10::cuda::getCurrentCUDAStream().stream()"
glue = '#include <torch/extension.h>\\n'
if language == "cu":
    glue += '#include <c10/cuda/CUDAStream.h>\\n#include <cuda_runtime.h>\\n'
    glue += 'extern "C" int launch(const float*, float*, void*, cudaStream_t);\\n'
else:
    glue += 'extern "C" int launch(const float*, float*, void*);\\n'
glue += 'torch::Tensor run(torch::Tensor x) { auto out = torch::empty_like(x); launch(x.data_ptr<float>(), '
glue += 'out.data_ptr<float>(), nullptr' + (", " + stream if language == "cu" else "") + '); return out; }\\n'
flags = ["-O3", "-march=native", "-fopenmp"]
if language == "cu":
    module = load_inline("kernel", glue, source, functions=["run"], build_directory=directory)
else:
    module = load_inline("kernel", glue + source, functions=["run"], build_directory=directory,
                         extra_cflags=flags, extra_ldflags=["-fopenmp"])
x = torch.randn(ROWS, COLUMNS, device="cuda" if language == "cu" else "cpu")
assert torch.allclose(module.run(x), torch.softmax(x, 1), rtol=1e-2, atol=1e-6)
"""


def sources(language: Language, count: int) -> list[str]:
    """Return ``count`` kernels that differ in text and schedule."""
    made = []
    for i in range(count):
        if language == "cu":
            made.append(CU.format(threads=64 << (i % 4), exp=("expf", "__expf")[i % 2]) + f"// {i}\n")
        else:
            made.append(CPP.format(chunk=1 + i, exp=("std::exp", "expf")[i % 2]))
    return made


async def judge_all(
    problem: ProblemSpec, header: str, language: Language, kernels: list[str]
) -> tuple[list[Verdict], float]:
    """Judge all sources with fresh builds. Returns the verdicts and the total wall time in seconds."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        device = "cuda" if language == "cu" else "cpu"
        evaluator = LocalEvaluator(EvaluationConfig(device=device), Path(cache))
        try:
            devices = await evaluator.start()
            started = time.perf_counter()
            opened = await evaluator.open(problem, header)
            print(f"device    {devices[0].name}; {os.cpu_count()} cores; sandbox: {evaluator.sandbox}")
            eager = opened.eager.timing.median_ms if opened.eager.timing else float("nan")
            print(f"problem   {problem.name}, eager {eager:.3f} ms; opened in {time.perf_counter() - started:.1f} s")
            started = time.perf_counter()
            verdicts = await asyncio.gather(
                *(evaluator.evaluate(problem, language, k, lambda stage: None) for k in kernels)
            )
            return list(verdicts), time.perf_counter() - started
        finally:
            await evaluator.close()


def inline_all(
    problem: ProblemSpec, header: str, language: Language, kernels: list[str], parallel: int
) -> tuple[list[float], float]:
    """Build each kernel with ``load_inline`` in its own process. Return the seconds per kernel and in total."""
    rows, columns = problem.inputs[0].shape
    script = INLINE.replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    with tempfile.TemporaryDirectory() as directory:

        def one(index: int) -> float:
            home = Path(directory) / str(index)
            home.mkdir()
            file = home / "source"
            file.write_text(header.replace("#pragma once", "") + kernels[index])
            started = time.perf_counter()
            command = [sys.executable, "-c", script, language, str(file), str(home)]
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"MAX_JOBS": "1"})
            return time.perf_counter() - started

        started = time.perf_counter()
        with ThreadPoolExecutor(parallel) as pool:
            each = list(pool.map(one, range(len(kernels))))
        return each, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--language", choices=("cpp", "cu"), default="cpp")
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--inline", type=int, default=20, help="number of kernels to build with load_inline; 0: none")
    parser.add_argument("--parallel", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    language: Language = arguments.language
    folder = "headline" if language == "cu" else "quickstart"
    with resources.as_file(resources.files("problems") / folder / "softmax.py") as file:
        (problem,) = asyncio.run(inspect_files([file]))
    if not isinstance(problem, ProblemSpec):
        sys.exit(str(problem))
    header = derive_header(problem, language)
    kernels = sources(language, arguments.kernels)
    verdicts, wall_s = asyncio.run(judge_all(problem, header, language, kernels))
    wrong = [f"{verdict.status}: {verdict.reason}" for verdict in verdicts if not verdict.correct]
    print(f"verdicts  {len(verdicts)} in {wall_s:.1f} s ({60 * len(verdicts) / wall_s:.0f} per minute); wrong: {wrong}")
    print(f"{'stage':12}{'median s':>10}{'max s':>10}")
    for stage in ("queue", "build", "start", "check", "timing", "kernelbench", "runs"):
        spent = [verdict.stage_s[stage] for verdict in verdicts]
        print(f"{stage:12}{statistics.median(spent):10.3f}{max(spent):10.3f}")
    overhead = [
        sum(v.stage_s[s] for s in ("start", "check", "timing", "kernelbench")) - v.stage_s["runs"] for v in verdicts
    ]
    print(f"{'overhead':12}{statistics.median(overhead):10.3f}{max(overhead):10.3f}")
    if arguments.inline:
        chosen = kernels[: arguments.inline]
        each, inline_s = inline_all(problem, header, language, chosen, arguments.parallel)
        print(f"{'load_inline':12}{statistics.median(each):10.3f}{max(each):10.3f}   {arguments.parallel} in parallel")
        rate = (inline_s / len(chosen)) / (wall_s / len(kernels))
        print(
            f"load_inline: {len(chosen)} built and checked once in {inline_s:.1f} s: "
            f"{rate:.1f} times as long per kernel as a verdict"
        )


if __name__ == "__main__":
    main()
