"""Builds emitted CUDA kernels with nvcc, runs them on a GPU, or on the processor in ``cuda_emulator``."""

from __future__ import annotations

import atexit
import ctypes
import math
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.events import DeviceFact
from engine.problem.header import derive_header
from engine.problem.spec import ProblemSpec
from tests.engine.proposers.cpp_harness import Problem

H200 = DeviceFact("gpu", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132)
A100 = DeviceFact("gpu", "cuda", "NVIDIA A100", "sm_80", 80 << 30, 108)
EMULATOR = Path(__file__).parent / "cuda_emulator"
EMULATE = ["g++", "-O1", "-std=c++17", "-fPIC", "-fno-gnu-unique", "-w"]
GUARD = 64  # elements around every buffer
TOLERANCE = {"float32": 4e-6, "float16": 1e-3, "bfloat16": 6e-3}
"""Relative error in the Euclidean norm, by the dtype of the output: a rounding of the result for the short ones."""
TF32_TOLERANCE = 2e-3
_LAUNCH = re.compile(r"([\w:]+)<<<([^,]+), ([^,]+), ([^,]+), stream>>>\((.*?)\);")
_SHARED = re.compile(r"extern __shared__ __align__\(128\) unsigned char (\w+)\[\];")


def compile_cuda(folder: Path, spec: ProblemSpec, source: str, arch: str, *, output: str = "-shared") -> Path:
    """A shared library for one architecture, or its machine code alone (``-cubin``, a third of the time): warnings of
    the compiler are errors."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "problem.h").write_text(derive_header(spec, "cu"))
    (folder / "kernel.cu").write_text(source)
    target = f"arch=compute_{arch.removeprefix('sm_')},code={arch}"
    command = ["nvcc", "-O3", "-std=c++17", output, "-Xcompiler", "-fPIC", "-Werror", "all-warnings"]
    command += ["-gencode", target, "-include", str(folder / "problem.h"), str(folder / "kernel.cu")]
    done = subprocess.run([*command, "-o", str(folder / "kernel.so")], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr + source
    return folder / "kernel.so"


def compile_emulated(folder: Path, spec: ProblemSpec, source: str) -> Path:
    """A shared library in which the kernel's threads are fibers of this processor."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "problem.h").write_text(derive_header(spec, "cu"))
    (folder / "kernel.cpp").write_text(emulated(source))
    command = [*EMULATE, "-shared", "-include", str(_precompiled() / "all.h"), "-I", str(EMULATOR)]
    command += ["-include", str(folder / "problem.h"), str(folder / "kernel.cpp"), "-o", str(folder / "kernel.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr + source
    return folder / "kernel.so"


@cache
def _precompiled() -> Path:
    """A directory with all of the emulator's headers in one, read once by the compiler: half of what it does."""
    folder = Path(tempfile.mkdtemp(prefix="emulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    lines = [f'#include "{header}"' for header in sorted(EMULATOR.glob("*.h"))]
    (folder / "all.h").write_text("\n".join(lines) + "\n")
    command = [*EMULATE, "-x", "c++-header", str(folder / "all.h"), "-o", str(folder / "all.h.gch")]
    subprocess.run(command, check=True, timeout=120)
    return folder


def emulated(source: str) -> str:
    """``source`` with what only nvcc knows replaced: launches, dynamic shared memory, inline assembly."""
    text = _LAUNCH.sub(r"emulator::launch(\2, \3, \4, stream, [=] { \1(\5); });", source)
    text = _SHARED.sub(r"static unsigned char* const \1 = emulator::dynamic;", text)
    text = re.sub(r'asm\("(max|min)\.NaN.*?;$', r"c = \1_of_emulated(a, b);", text, flags=re.M)
    mma = r"asm volatile\(\s*\"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16).*?\);$"
    text = re.sub(mma, r"emulator::mma_16816_\1(d, a, b);", text, flags=re.S | re.M)
    assert "<<<" not in text and "asm" not in text
    return text


def run(problem: Problem, library_path: Path, device: str) -> list[torch.Tensor]:
    """Outputs of ``launch`` on guarded buffers of ``device`` (``cpu`` for an emulated kernel), poisoned with NaN."""
    library = ctypes.CDLL(str(library_path))
    given = [_guarded(x.detach(), device) for x in (*problem.inputs, *problem.weights)]
    poison = [torch.full(o.shape, math.nan, dtype=getattr(torch, o.dtype)) for o in problem.spec.outputs]
    outputs = [_guarded(x, device) for x in poison]
    size = 0
    if hasattr(library, "workspace_bytes"):
        library.workspace_bytes.restype = ctypes.c_size_t
        size = library.workspace_bytes()
    workspace = torch.full((max(size, 1) + 256,), 0xA5, dtype=torch.uint8, device=device)
    pointers = [ctypes.c_void_p(view.data_ptr()) for _, view in (*given, *outputs)]
    pointers.append(ctypes.c_void_p(-(-workspace.data_ptr() // 256) * 256))
    stream = None
    if device == "cuda":
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
    code = library.launch(*pointers, ctypes.c_void_p(stream.cuda_stream if stream else 0))
    assert code == 0, f"launch returned {code}"
    if device == "cuda":
        torch.cuda.synchronize()
    for store, view in (*given, *outputs):
        inside = view.numel()
        assert bool((store[:GUARD] == 77).all()) and bool((store[GUARD + inside :] == 77).all()), (
            "written past a buffer"
        )
    for tensor, (_, view) in zip((*problem.inputs, *problem.weights), given, strict=True):
        assert torch.equal(view.cpu(), tensor.detach()), "an input was written"
    return [view.cpu() for _, view in outputs]


def errors(problem: Problem, found: list[torch.Tensor]) -> list[float]:
    """||out - reference|| / ||reference|| of each output, the reference in float64."""
    kept = [x.dtype for x in problem.inputs]
    with torch.no_grad():
        wanted: Any = problem.model.double()(*(x.double() for x in problem.inputs))
    problem.model.to(kept[0])
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    return [float((f.double() - w).norm() / w.norm().clamp_min(1e-30)) for f, w in zip(found, wanted, strict=True)]


def check(problem: Problem, found: list[torch.Tensor], *, tf32: bool = False, message: str = "") -> None:
    """Asserts that ``found`` are the reference's outputs, up to rounding."""
    for tensor, error in zip(found, errors(problem, found), strict=True):
        limit = TF32_TOLERANCE if tf32 else TOLERANCE[str(tensor.dtype).removeprefix("torch.")]
        assert error <= limit, f"error {error:.1e} > {limit:.1e}\n{message}"


def _guarded(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of ``values`` inside a store whose other elements are guards; aligned to 256 bytes."""
    store = torch.full((values.numel() + 2 * GUARD + 256,), 77.0, device=device).to(values.dtype)
    size = store.element_size()
    start = GUARD + (-(store.data_ptr() + GUARD * size)) % 256 // size
    store = store[start - GUARD : start + values.numel() + GUARD]
    view = store[GUARD : GUARD + values.numel()].view(values.shape)
    view.copy_(values)
    return store, view
