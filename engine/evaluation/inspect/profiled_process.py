"""The process that ncu profiles. The process draws the problem's inputs and calls one kernel.

Usage: ``python -m engine.evaluation.inspect.profiled_process KERNEL DEVICE [ID] < problem.json``. KERNEL is a built
library, or the ``kernel.py`` of a built module. DEVICE is ``cuda`` or ``cpu``. If ID names a GPU, the process waits
until no judge uses that GPU. The kernel runs with the user's permissions, because ncu cannot profile a process in the
sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from engine.evaluation.build.python_modules import CACHE, EXTENSIONS
from engine.evaluation.inputs.reference import Reference
from engine.evaluation.judge.device_lock import alone
from engine.evaluation.sandbox.inside.python_kernel import extensions
from engine.problem.model import SEED
from engine.problem.spec import ProblemSpec

WARM_UP_CALLS = 2


def run(problem: ProblemSpec, kernel: Path, device: str) -> int:
    """Call the kernel once under the profiler, after a warm-up. Return the status of ``launch``; 0 means success."""
    reference = Reference.load(problem.source, problem.path, device)
    call = (_module if kernel.suffix == ".py" else _library)(problem, kernel, device, reference)
    for _ in range(WARM_UP_CALLS):
        if (code := call()) != 0:
            return code
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    code = call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return code


def _module(problem: ProblemSpec, kernel: Path, device: str, reference: Reference) -> Callable[[], int]:
    """Return a function that calls a module's ``ModelNew``. If the module's weights do not match the reference's
    weights, the module keeps its own weights.
    """
    home = kernel.parent
    os.environ |= {
        extensions.DIRECTORY_VARIABLE: str(home / EXTENSIONS),
        "TRITON_CACHE_DIR": str(home / CACHE / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / CACHE / "inductor"),
    }
    extensions.install()
    spec = importlib.util.spec_from_file_location("kernel", kernel)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    torch.manual_seed(SEED)
    model = module.ModelNew(*reference.init_arguments).to(device)
    with contextlib.suppress(RuntimeError):
        model.load_state_dict(reference.model.state_dict())
    arguments = reference.arguments(reference.draw(seed=1))

    def call() -> int:
        with torch.no_grad():
            model(*arguments)
        return 0

    return call


def _library(problem: ProblemSpec, library: Path, device: str, reference: Reference) -> Callable[[], int]:
    """Return a function that calls a library's ``launch``."""
    inputs = Reference.tensors(reference.draw(seed=1))
    weights = [tensor for _, tensor in reference.weights()]
    outputs = [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=device) for one in problem.outputs]
    kernel = ctypes.CDLL(str(library))
    workspace = torch.empty(max(1, _workspace_bytes(kernel)), dtype=torch.uint8, device=device)
    held = (*inputs, *weights, *outputs, workspace)
    arguments: list[Any] = [ctypes.c_void_p(one.data_ptr()) for one in held]
    if device == "cuda":
        arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def call(_held: object = held) -> int:  # The tensors must live as long as the call.
        return int(kernel.launch(*arguments))

    return call


def _workspace_bytes(kernel: ctypes.CDLL) -> int:
    with contextlib.suppress(AttributeError):
        kernel.workspace_bytes.restype = ctypes.c_size_t
        return int(kernel.workspace_bytes())
    return 0


def main(arguments: list[str]) -> int:
    kernel, device, *lock = arguments
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec)
    with alone(lock[0], lambda: False) if lock else contextlib.nullcontext():
        code = run(problem, Path(kernel), device)
    if code != 0:
        sys.stderr.write(f"launch returned {code}\n")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
