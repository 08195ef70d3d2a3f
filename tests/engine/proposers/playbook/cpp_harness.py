"""Build emitted C++ kernels with the real compiler and compare them with the reference in float64."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.evaluation.build.compilers import compiler_of, stack_flags
from engine.problem.c_header import derive_header
from engine.problem.inspection import inspect_file
from engine.problem.spec import ProblemSpec
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.made_once import made_once
from tests.patience import PATIENCE_S

STANDARD = ["-std=c++17", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC", *stack_flags(compiler_of("cpp"))]
# Vectors wider than the processor's registers have no stable ABI. Only functions inside the kernel pass them.
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi"]
ALIGNMENT = 256
TOLERANCE = 2e-5
GUARD = 64  # floats around every buffer


@dataclass(frozen=True)
class Problem:
    """Create a problem from the body of ``forward`` and example inputs."""

    spec: ProblemSpec
    inputs: list[torch.Tensor]
    weights: list[torch.Tensor]
    model: torch.nn.Module


def make_problem(
    folder: Path, forward: str, shapes: dict[str, tuple[int, ...]], init: str = "", dtype: str = "float32"
) -> Problem:
    """Inspect a KernelBench file with ``forward`` over inputs of ``shapes``.

    ``dtype`` applies to inputs and weights.
    """
    source = "\n".join(
        [
            "import math, torch",
            "from torch import nn",
            "import torch.nn.functional as F",
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        torch.set_default_dtype(torch.{dtype})",
            f"        {init or 'pass'}",
            "        torch.set_default_dtype(torch.float32)",
            f"    def forward(self, {', '.join(shapes)}):",
            *(f"        {line}" for line in forward.splitlines()),
            "def get_inputs():",
            f"    return [torch.randn(s, dtype=torch.{dtype}) for s in {list(shapes.values())!r}]",
            "def get_init_inputs():",
            "    return []",
        ]
    )
    path = folder / "problem.py"
    path.write_text(source + "\n")
    spec = inspect_file(path, "problem")
    scope: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), scope)
    model = scope["Model"]()
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes.values()]
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    ordered = [weights[tensor.source_name or tensor.name] for tensor in spec.weights]
    for weight in ordered:
        weight.data.copy_(torch.randn(weight.shape, generator=generator))
    return Problem(spec, inputs, [weight.detach().clone() for weight in ordered], model)


def _precompiled(optimize: str) -> Path:
    """Return a directory with precompiled headers of the kernels, which halves the compile time."""

    def make(folder: Path) -> None:
        (folder / "standard.h").write_text("#include <cmath>\n#include <cstddef>\n#include <cstdint>\n")
        command = ["g++", optimize, *STANDARD, *WARNINGS, "-x", "c++-header", "standard.h", "-o", "standard.h.gch"]
        subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_S)

    return made_once(f"standard{optimize}", make)


def build(folder: Path, spec: ProblemSpec, source: str, *, optimize: str = "-O3") -> Kernel:
    """Build ``source`` into a shared library. Warnings are errors."""
    (kernel,) = build_all(folder, [(spec, source)], optimize=optimize)
    return kernel


def build_all(folder: Path, kernels: Sequence[tuple[ProblemSpec, str]], *, optimize: str = "-O3") -> list[Kernel]:
    """Build all of ``kernels`` into one shared library. Warnings are errors."""
    # dlopen identifies a library by its path, so each build gets a new one
    folder = Path(tempfile.mkdtemp(dir=folder))
    library = folder / "kernel.so"
    parts = [(str(number), derive_header(spec, "cpp"), source) for number, (spec, source) in enumerate(kernels)]
    (folder / "kernel.cpp").write_text(in_one_unit(parts))
    command = ["g++", optimize, *STANDARD, *WARNINGS, "-include", str(_precompiled(optimize) / "standard.h")]
    command += ["-shared", str(folder / "kernel.cpp"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, "\n".join([done.stderr, *(source for _, source in kernels)])
    return [Kernel(library, f"_{number}") for number in range(len(kernels))]


def run(problem: Problem, kernel: Kernel) -> list[np.ndarray]:
    """Run ``launch`` on guarded, aligned buffers poisoned with NaN, and return its outputs and the
    buffers that it writes.
    """
    tensors = [*problem.inputs, *problem.weights]
    given = [_aligned(tensor.detach().numpy()) for tensor in tensors]
    outputs = [_aligned(_poison(output.shape, output.dtype)) for output in problem.spec.outputs]
    scratch = np.zeros(kernel.workspace_bytes() + ALIGNMENT, np.uint8)
    pointers = [ctypes.c_void_p(array.ctypes.data) for _, array in (*given, *outputs)]
    # The judge aligns the workspace too. Vector code relies on it.
    pointers.append(ctypes.c_void_p(-(-scratch.ctypes.data // ALIGNMENT) * ALIGNMENT))
    assert kernel.launch(*pointers) == 0
    for store, array in (*given, *outputs):
        _check_guards(store, array)
    specs = [*problem.spec.inputs, *problem.spec.weights]
    for tensor, spec, (_, array) in zip(tensors, specs, given, strict=True):
        assert spec.mutated or np.array_equal(tensor.detach().numpy(), array, equal_nan=True), "an input was written"
    return [array for _, array in (*outputs, *(one for spec, one in zip(specs, given, strict=True) if spec.mutated))]


def reference(problem: Problem) -> list[torch.Tensor]:
    """Return the reference's outputs in float64, and then the buffers that it writes."""
    model = problem.model.double()
    buffers = dict(model.named_buffers())
    weights = zip(problem.spec.weights, problem.weights, strict=True)
    written = [(buffers[spec.source_name or spec.name], weight) for spec, weight in weights if spec.mutated]
    with torch.no_grad():
        for buffer, weight in written:
            buffer.copy_(weight)
        result = model(*[tensor.double() for tensor in problem.inputs])
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    outputs += [buffer.clone() for buffer, _ in written]
    model.to(problem.inputs[0].dtype)
    return outputs


def expected(problem: Problem) -> list[np.ndarray]:
    """Return what ``reference`` does, as arrays."""
    return [one.numpy() for one in reference(problem)]


def check(problem: Problem, folder: Path, source: str, *, optimize: str = "-O3") -> None:
    """Assert that ``source`` builds without warnings and matches the reference."""
    check_all([(problem, source)], folder, optimize=optimize)


def check_all(kernels: Sequence[tuple[Problem, str]], folder: Path, *, optimize: str = "-O3") -> None:
    """Assert that each source builds without warnings and matches its problem's reference."""
    built = build_all(folder, [(problem.spec, source) for problem, source in kernels], optimize=optimize)
    references: dict[int, list[np.ndarray]] = {}
    for (problem, source), kernel in zip(kernels, built, strict=True):
        if id(problem) not in references:
            references[id(problem)] = expected(problem)
        for output, wanted in zip(run(problem, kernel), references[id(problem)], strict=True):
            # Judge a sum of many terms by the magnitude of the sums: a result near 0 has a large relative error.
            size = max(1.0, float(np.abs(wanted).max())) if wanted.size else 1.0
            np.testing.assert_allclose(output, wanted, rtol=TOLERANCE, atol=TOLERANCE * size, err_msg=source)


def _poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an output that no correct kernel leaves as it is."""
    return np.full(shape, np.nan, np.float32) if dtype == "float32" else np.full(shape, -12345, np.dtype(dtype))


def _aligned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copy ``values`` to an aligned address inside a buffer filled with guard values."""
    floats = -(-values.nbytes // 4)
    store = np.full(floats + 2 * GUARD + ALIGNMENT // 4, 12345.0, np.float32)
    start = GUARD + (-(store.ctypes.data // 4 + GUARD)) % (ALIGNMENT // 4)
    array = store[start : start + floats].view(np.uint8)[: values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return store, array


def _check_guards(store: np.ndarray, array: np.ndarray) -> None:
    start = (array.ctypes.data - store.ctypes.data) // 4
    assert (store[:start] == 12345.0).all(), "written before the buffer"
    end = start + -(-array.nbytes // 4)
    assert (store[end:] == 12345.0).all(), "written past the buffer"
