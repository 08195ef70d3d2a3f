"""Build emitted CUDA kernels with nvcc and run them on a GPU, or on the CPU in ``cuda_emulator``."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from engine.devices.fact import DeviceFact
from engine.problem.c_header import derive_header
from engine.problem.spec import ProblemSpec, TensorSpec
from tests.engine.proposers.playbook.cpp_harness import Problem, reference
from tests.engine.proposers.playbook.one_unit import Kernel, in_one_unit
from tests.made_once import made_once
from tests.patience import PATIENCE_S

H200 = DeviceFact("gpu", "cuda", "NVIDIA H200", "sm_90a", 141 << 30, 132)
A100 = DeviceFact("gpu", "cuda", "NVIDIA A100", "sm_80", 80 << 30, 108)
EMULATOR = Path(__file__).parent / "cuda_emulator"
EMULATE = ["g++", "-O1", "-std=c++17", "-fPIC", "-fno-gnu-unique", "-w"]
GUARD = 64  # elements around every buffer
TOLERANCE = {"float32": 4e-6, "float16": 1e-3, "bfloat16": 6e-3}
"""Allowed relative error in the Euclidean norm by output dtype; short types include one rounding of the result."""
TF32_TOLERANCE = 2e-3
_LAUNCH = re.compile(r"([\w:]+)<<<([^,]+), ([^,]+), ([^,]+), stream>>>\((.*?)\);")
_SHARED = re.compile(r"extern __shared__ __align__\(128\) unsigned char (\w+)\[\];")


def compile_cuda(folder: Path, spec: ProblemSpec, source: str, arch: str) -> Path:
    """Build a shared library for one architecture. Warnings are errors."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "problem.h").write_text(derive_header(spec, "cu"))
    (folder / "kernel.cu").write_text(source)
    command = ["-shared", "-Xcompiler", "-fPIC", "-include", str(folder / "problem.h")]
    return _nvcc(folder / "kernel.cu", arch, *command)


def machine_code(folder: Path, kernels: Sequence[tuple[str, ProblemSpec, str]], arch: str) -> Path:
    """Compile all of ``kernels`` (name, problem, source) to machine code only, which takes a third of the time.

    The device functions are in ``kernel_0``, ``kernel_1`` ... Warnings are errors.
    """
    path = Path(tempfile.mkdtemp(dir=folder)) / "kernels.cu"
    path.write_text(in_one_unit([(name, derive_header(spec, "cu"), source) for name, spec, source in kernels]))
    return _nvcc(path, arch, "-cubin")


def _nvcc(source: Path, arch: str, *options: str) -> Path:
    target = f"arch=compute_{arch.removeprefix('sm_')},code={arch}"
    command = ["nvcc", "-O3", "-std=c++17", *options, "-Werror", "all-warnings", "-gencode", target, str(source)]
    compiled = source.with_suffix(".so")
    done = subprocess.run([*command, "-o", str(compiled)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr + source.read_text()
    return compiled


def compile_emulated(folder: Path, spec: ProblemSpec, source: str) -> Kernel:
    """Build a shared library that emulates the kernel's threads as fibers on the CPU."""
    (kernel,) = compile_all_emulated(folder, [(spec, source)])
    return kernel


def compile_all_emulated(folder: Path, kernels: Sequence[tuple[ProblemSpec, str]]) -> list[Kernel]:
    """Build all of ``kernels`` into one shared library."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    library = folder / "kernel.so"
    parts = [(str(at), derive_header(spec, "cu"), emulated(source)) for at, (spec, source) in enumerate(kernels)]
    (folder / "kernel.cpp").write_text(in_one_unit(parts))
    emulator = _emulator()
    command = [*EMULATE, "-shared", "-include", str(emulator / "all.h"), "-I", str(EMULATOR)]
    command += [str(folder / "kernel.cpp"), str(emulator / "emulator.so"), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, "\n".join([done.stdout + done.stderr, *(source for _, source in kernels)])
    return [Kernel(library, f"_{number}") for number in range(len(kernels))]


def _emulator() -> Path:
    """Return a directory with ``emulator.so`` and the precompiled headers of emulated kernels."""

    def make(folder: Path) -> None:
        lines = [f'#include "{header}"' for header in sorted(EMULATOR.glob("*.h"))]
        (folder / "all.h").write_text("\n".join(lines) + "\n")
        command = [*EMULATE, "-x", "c++-header", str(folder / "all.h"), "-o", str(folder / "all.h.gch")]
        subprocess.run(command, check=True, timeout=PATIENCE_S)
        command = [*EMULATE, "-O2", "-shared", str(EMULATOR / "emulator.cpp"), "-o", str(folder / "emulator.so")]
        subprocess.run(command, check=True, timeout=PATIENCE_S)

    return made_once("emulator", make)


def emulated(source: str) -> str:
    """Replace in ``source`` what only nvcc supports: launches, dynamic shared memory, inline assembly."""
    text = _LAUNCH.sub(r"emulator::start(\2, \3, \4, stream, [=] { \1(\5); });", source)
    text = _SHARED.sub(r"static unsigned char* const \1 = emulator::dynamic;", text)
    text = re.sub(r'asm\("(max|min)\.NaN.*?;$', r"c = \1_of_emulated(a, b);", text, flags=re.M)
    mma = r"asm volatile\(\s*\"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16).*?\);$"
    text = re.sub(mma, r"emulator::mma_16816_\1(d, a, b);", text, flags=re.S | re.M)
    text = re.sub(r"asm volatile\(\"ldmatrix\..*?\);$", "emulator::load_matrices(d, from);", text, flags=re.S | re.M)
    text = re.sub(r"asm volatile\(\"prefetch\..*?\);$", ";", text, flags=re.M)
    text = re.sub(r"asm volatile\(\"bar\.sync.*?\);$", "emulator::wait_named(team, team_threads);", text, flags=re.M)
    assert "<<<" not in text and "asm" not in text
    return text


def run(problem: Problem, kernel: Kernel, device: str) -> list[torch.Tensor]:
    """Run ``launch`` on guarded, NaN-poisoned buffers of ``device`` (``cpu``: emulated), and return its outputs."""
    given = [_guarded(x.detach(), device) for x in (*problem.inputs, *problem.weights)]
    poison = [_poison(output) for output in problem.spec.outputs]
    outputs = [_guarded(x, device) for x in poison]
    workspace = torch.full((kernel.workspace_bytes() + 256,), 0xA5, dtype=torch.uint8, device=device)
    pointers = [ctypes.c_void_p(view.data_ptr()) for _, view in (*given, *outputs)]
    pointers.append(ctypes.c_void_p(-(-workspace.data_ptr() // 256) * 256))
    stream = None
    if device == "cuda":
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
    code = kernel.launch(*pointers, ctypes.c_void_p(stream.cuda_stream if stream else 0))
    assert code == 0, f"launch returned {code}"
    if device == "cuda":
        torch.cuda.synchronize()
    for store, view in (*given, *outputs):
        inside = view.numel()
        assert bool((store[:GUARD] == 77).all()) and bool((store[GUARD + inside :] == 77).all()), (
            "written past a buffer"
        )
    specs = (*problem.spec.inputs, *problem.spec.weights)
    for spec, tensor, (_, view) in zip(specs, (*problem.inputs, *problem.weights), given, strict=True):
        assert spec.mutated or torch.equal(view.cpu(), tensor.detach()), "an input was written"
    written = [one for spec, one in zip(specs, given, strict=True) if spec.mutated]
    return [view.cpu() for _, view in (*outputs, *written)]


def errors(problem: Problem, found: list[torch.Tensor]) -> list[float]:
    """Return ||out - reference|| / ||reference|| of each output, with the reference in float64."""
    wanted = [one.double() for one in reference(problem)]
    return [float((f.double() - w).norm() / w.norm().clamp_min(1e-30)) for f, w in zip(found, wanted, strict=True)]


def check(problem: Problem, found: list[torch.Tensor], *, tf32: bool = False, message: str = "") -> None:
    """Assert that ``found`` matches the reference's outputs up to rounding."""
    for tensor, error in zip(found, errors(problem, found), strict=True):
        limit = TF32_TOLERANCE if tf32 else TOLERANCE.get(str(tensor.dtype).removeprefix("torch."), 0.0)
        assert error <= limit, f"error {error:.1e} > {limit:.1e}\n{message}"


def _poison(output: TensorSpec) -> torch.Tensor:
    """Return an output that no correct kernel leaves as it is."""
    dtype = getattr(torch, output.dtype)
    return torch.full(output.shape, math.nan if dtype.is_floating_point else -12345, dtype=dtype)


def _guarded(values: torch.Tensor, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy ``values`` into a buffer filled with guard values, aligned to 256 bytes."""
    store = torch.full((values.numel() + 2 * GUARD + 256,), 77.0, device=device).to(values.dtype)
    size = store.element_size()
    start = GUARD + (-(store.data_ptr() + GUARD * size)) % 256 // size
    store = store[start - GUARD : start + values.numel() + GUARD]
    view = store[GUARD : GUARD + values.numel()].view(values.shape)
    view.copy_(values)
    return store, view
