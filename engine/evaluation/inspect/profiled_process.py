"""The process that ncu profiles. It draws the problem's inputs and calls one kernel.

Usage: ``python -m engine.evaluation.inspect.profiled_process LIBRARY DEVICE < problem.json``. DEVICE is ``cuda`` or
``cpu``. The kernel runs with the user's permissions, because ncu cannot profile a process in the sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

import msgspec
import torch

from engine.evaluation.inputs.reference import Reference
from engine.problem.spec import ProblemSpec

WARM_UP_CALLS = 2


def run(problem: ProblemSpec, library: str, device: str) -> int:
    """Call the kernel once under the profiler, after a warm-up. Return the status of ``launch``; 0 means success."""
    reference = Reference.load(problem.source, problem.path, device)
    inputs = Reference.tensors(reference.draw(seed=1))
    weights = [tensor for _, tensor in reference.weights()]
    outputs = [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device=device) for one in problem.outputs]
    kernel = ctypes.CDLL(library)
    workspace = torch.empty(max(1, _workspace_bytes(kernel)), dtype=torch.uint8, device=device)
    arguments: list[Any] = [ctypes.c_void_p(one.data_ptr()) for one in (*inputs, *weights, *outputs, workspace)]
    if device == "cuda":
        arguments.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    for _ in range(WARM_UP_CALLS):
        if (code := kernel.launch(*arguments)) != 0:
            return int(code)
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    code = kernel.launch(*arguments)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return int(code)


def _workspace_bytes(kernel: ctypes.CDLL) -> int:
    with contextlib.suppress(AttributeError):
        kernel.workspace_bytes.restype = ctypes.c_size_t
        return int(kernel.workspace_bytes())
    return 0


def main(arguments: list[str]) -> int:
    library, device = arguments
    code = run(msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec), library, device)
    if code != 0:
        sys.stderr.write(f"launch returned {code}\n")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
