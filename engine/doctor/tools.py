"""Check the tools that build, run and isolate kernels: Python, compilers, the driver, PyTorch, and the sandbox."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.config.schema import Config
from engine.devices import hardware
from engine.doctor.finding import Finding, run
from engine.evaluation.build.compilers import command_line, run_compiler
from engine.evaluation.inspect.profiler import find_ncu
from engine.problem.spec import Language
from engine.system.python_process import python_path
from engine.system.tool_paths import INSTALL_CUDA, NoCompiler, NoTool, find_cpp_compiler, find_cuda_tool, find_nvcc

_PROGRAM = """\
#include <omp.h>
extern "C" int launch() {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 100; ++i) sum += omp_get_num_threads();
    return sum;
}
"""
_CUDA_PROGRAM = """\
#include <cuda_fp16.h>
__global__ void probe(float* out) { out[threadIdx.x] = 1.0f; }
extern "C" int launch(float* out, cudaStream_t stream) {
    probe<<<1, 32, 0, stream>>>(out);
    return cudaGetLastError();
}
"""
_TORCH_PROBE = """\
import importlib.util, json, sys
import torch
sys.stdout.write(json.dumps({
    "version": torch.__version__,
    "cuda_build": torch.version.cuda,
    "cuda_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "triton": importlib.util.find_spec("triton") is not None,
}))
"""
_TORCH_DEADLINE_S = 120.0


class _Torch(Struct, frozen=True):
    version: str
    cuda_build: str | None
    cuda_devices: int
    triton: bool


class Gpus(Struct, frozen=True):
    """The GPUs that NVML reports. ``cuda``: the newest CUDA version that the driver supports, for example (13, 0)."""

    names: tuple[str, ...]
    archs: tuple[str, ...]
    driver: str
    cuda: tuple[int, int] | None
    absence: str | None


def needs_gpu(config: Config | None) -> bool:
    return config is not None and any(name.startswith("cuda") for name in config.evaluation.devices)


def python() -> Finding:
    version = platform.python_version()
    if sys.platform != "linux":
        what = f"kernel-tui does not support {platform.system()}: the sandbox needs Linux"
        return Finding("python", "fail", what, "use Linux, or Linux in a virtual machine")
    return Finding("python", "ok", f"Python {version} in {sys.prefix}, {platform.system()} {platform.release()}")


def cpp_compiler() -> Finding:
    """Build a shared library that uses OpenMP, with the command that builds kernels."""
    name = "c++ compiler"
    try:
        compiler = find_cpp_compiler()
    except NoCompiler as error:
        return Finding(name, "fail", "no C++ compiler", str(error))
    shown = _first_line([compiler, "--version"]) or compiler
    code, log = _build("cpp", compiler, "", _PROGRAM)
    if code != 0:
        what = f"{shown} cannot build a kernel with OpenMP: {_first_error(log)}"
        return Finding(name, "fail", what, _cpp_remedy(log))
    return Finding(name, "ok", f"{shown} builds with OpenMP")


def _cpp_remedy(log: str) -> str:
    if "-std=" in log:
        return "install a C++ compiler that supports C++20, such as g++ 10 or later, then type: export CXX=/path/to/g++"
    if re.search(r"openmp|\b(lib|l)?g?omp(\b|_)", log, re.IGNORECASE):
        return (
            "install the compiler's OpenMP library (Debian, Ubuntu: apt-get install libomp-dev), "
            "or use g++: export CXX=g++"
        )
    if "did not finish" in log:
        return "check whether the machine is overloaded"
    return "reinstall the C++ compiler, or use another compiler: export CXX=/path/to/g++"


def gpus() -> Gpus:
    """Return the NVIDIA GPUs that this process may use, and facts about their driver."""
    reader = hardware.DeviceReader()
    found = [fact for fact in reader.discover() if fact.kind == "cuda"]
    driver, cuda = "", None
    if found:
        import pynvml

        driver = pynvml.nvmlSystemGetDriverVersion()
        newest = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        cuda = (newest // 1000, newest % 1000 // 10)
    return Gpus(
        names=tuple(fact.name for fact in found),
        archs=tuple(sorted({fact.arch for fact in found})),
        driver=driver if isinstance(driver, str) else driver.decode(),
        cuda=cuda,
        absence=reader.cuda_absence,
    )


def nvidia_driver(found: Gpus, required: bool) -> Finding:
    name = "nvidia gpu"
    if found.names:
        each = ", ".join(f"{found.names.count(one)} x {one}" for one in dict.fromkeys(found.names))
        cuda = f", supports CUDA up to {found.cuda[0]}.{found.cuda[1]}" if found.cuda else ""
        return Finding(name, "ok", f"{each} ({', '.join(found.archs)}), driver {found.driver}{cuda}")
    if required:
        return Finding(
            name,
            "fail",
            f"the config requires a GPU, but this machine has none: {found.absence}",
            'install the NVIDIA driver, or set [evaluation] device = "cpu"',
        )
    return Finding(name, "ok", f"none ({found.absence}); a search writes C++ kernels for the CPU")


def nvcc(found: Gpus, required: bool) -> Finding:
    """Check that nvcc exists, can target the GPUs, and does not belong to a newer CUDA major version than the driver
    supports.
    """
    name = "nvcc"
    wanted = required or bool(found.names)
    try:
        compiler = find_nvcc()
    except NoCompiler as error:
        if wanted:
            return Finding(name, "fail", "no CUDA compiler, so kernel-tui cannot build .cu kernels", str(error))
        return Finding(name, "ok", "not installed; without a GPU, a search writes C++ kernels")
    release = re.search(r"release (\d+)\.(\d+)", _output([compiler, "--version"]))
    if release is None:
        return Finding(name, "fail", f"{compiler} reports no version", "reinstall the CUDA toolkit")
    version = (int(release[1]), int(release[2]))
    shown = f"CUDA {version[0]}.{version[1]} ({compiler})"
    if found.cuda is not None and version[0] > found.cuda[0]:
        driver = f"driver {found.driver}, which supports CUDA up to {found.cuda[0]}.{found.cuda[1]}"
        remedy = f"update the driver, or use the nvcc of a CUDA {found.cuda[0]} toolkit: export NVCC=/path/to/nvcc"
        return Finding(name, "fail", f"{shown} is too new for {driver}", remedy)
    can_build = _output([compiler, "--list-gpu-code"]).split()
    if can_build and (unknown := [arch for arch in found.archs if arch.rstrip("a") not in can_build]):
        remedy = "use the nvcc of a toolkit that supports this device: export NVCC=/path/to/nvcc"
        return Finding(name, "fail", f"{shown} cannot build for {', '.join(unknown)}", remedy)
    arch = found.archs[0] if found.archs else "sm_80"
    code, log = _build("cu", compiler, arch, _CUDA_PROGRAM)
    if code != 0:
        remedy = (
            f"reinstall nvcc: {INSTALL_CUDA}; if nvcc rejects the C++ compiler as too new, install an older C++ "
            f"compiler, then type: export NVCC_CCBIN=/path/to/g++"
        )
        what = f"{shown} cannot build a kernel: {_first_error(log)}"
        return Finding(name, "fail" if wanted else "warn", what, remedy)
    without = ""
    try:
        find_cuda_tool("nvdisasm")
    except NoTool:
        without = (
            "; nvdisasm is missing, so `kernel-tui sass` shows a .cu kernel's registers and PTX but no machine "
            "instructions"
        )
    return Finding(name, "ok", f"{shown} builds for {arch}{without}")


def counters(found: Gpus, driver: Path = Path("/proc/driver/nvidia/params")) -> Finding:
    """Check that ``kernel-tui profile`` can read hardware counters. A search does not need counters."""
    name = "gpu counters"
    if not found.names:
        return Finding(name, "ok", "not needed without a GPU")
    try:
        ncu = find_ncu()
    except NoTool as error:
        return Finding(
            name,
            "warn",
            "Nsight Compute is missing, so `kernel-tui profile` does not work; searches still work",
            str(error),
        )
    restricted = driver.exists() and re.search(r"(?m)^RmProfilingAdminOnly: 1$", driver.read_text()) is not None
    if restricted and os.geteuid() != 0:
        what = (
            "only root can read counters (ERR_NVGPUCTRPERM), so `kernel-tui profile` does not work; searches still work"
        )
        remedy = (
            "as root, put 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' into a .conf file in /etc/modprobe.d, "
            "then reboot"
        )
        return Finding(name, "warn", what, remedy)
    return Finding(name, "ok", f"{ncu} can read hardware counters")


def torch(found: Gpus, required: bool) -> Finding:
    """Import PyTorch in a child process, as the runners of Python kernels do: without the user's site directory."""
    name = "pytorch"
    remedy = "run `pip install --force-reinstall torch`, or choose a build at https://pytorch.org/get-started"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONPATH": python_path()}
    asked = run([sys.executable, "-P", "-s", "-c", _TORCH_PROBE], _TORCH_DEADLINE_S, environment)
    if asked is None:
        return Finding(
            name,
            "fail",
            f"PyTorch took more than {_TORCH_DEADLINE_S:.0f} s to import",
            "check whether the disk is slow or overloaded",
        )
    if asked.returncode != 0:
        said = (asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"])[-1]
        return Finding(name, "fail", f"import torch failed: {said}", remedy)
    probe = msgspec.json.decode(asked.stdout, type=_Torch)
    shown = f"torch {probe.version}, " + (f"CUDA {probe.cuda_build}" if probe.cuda_build else "CPU only")
    if (found.names or required) and not probe.cuda_devices:
        why = "this build supports only the CPU" if probe.cuda_build is None else "PyTorch finds no usable device"
        return Finding(name, "fail" if required else "warn", f"{shown} cannot use the GPU: {why}", remedy)
    if probe.cuda_devices and not probe.triton:
        return Finding(
            name, "warn", f"{shown}, without triton, so a search cannot time torch.compile", "pip install triton"
        )
    return Finding(name, "ok", shown)


def sandbox(config: Config | None) -> Finding:
    """Start a runner without a kernel, and report the active isolation layers."""
    from engine.evaluation.sandbox.probe import describe, probe
    from engine.evaluation.sandbox.runner import RunnerEnded

    name = "sandbox"
    mode = config.evaluation.sandbox if config is not None else "auto"
    if mode == "off":
        return Finding(
            name,
            "warn",
            "the config turns the sandbox off, so kernels run with your permissions",
            'set [evaluation] sandbox = "auto"',
        )
    try:
        report = probe()
    except RunnerEnded as error:
        return Finding(name, "fail", f"cannot start a kernel process: {error}", 'set [evaluation] sandbox = "off"')
    if not report.missing:
        return Finding(name, "ok", describe(report))
    return Finding(name, "fail" if mode == "require" else "warn", describe(report), _namespace_remedy(report.missing))


def _namespace_remedy(missing: tuple[str, ...]) -> str:
    if "namespaces" not in missing:
        return "use Linux 5.13 or later, with Landlock and seccomp enabled"
    for setting, wanted in (
        ("kernel.apparmor_restrict_unprivileged_userns", "0"),
        ("kernel.unprivileged_userns_clone", "1"),
    ):
        file = Path("/proc/sys") / setting.replace(".", "/")
        if file.exists() and file.read_text().strip() != wanted:
            return f"as root, type: sysctl -w {setting}={wanted}"
    return (
        "in a container, allow user namespaces (docker run --security-opt seccomp=unconfined), or run "
        "kernel-tui outside the container"
    )


def _build(language: Language, compiler: str, arch: str, text: str) -> tuple[int, str]:
    """Compile ``text`` as the builder compiles a kernel; return the exit code and the compiler's output."""
    with tempfile.TemporaryDirectory(prefix="kernel-tui-doctor-") as directory:
        source = Path(directory) / f"probe.{language}"
        source.write_text(text)
        command = command_line(language, compiler, arch, source, source.with_suffix(".so"), [])
        return asyncio.run(run_compiler(command, source.parent))


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), log.strip()[-200:])


def _output(command: list[str]) -> str:
    finished = run(command, timeout_s=20)
    return finished.stdout if finished is not None else ""


def _first_line(command: list[str]) -> str:
    return (_output(command).splitlines() or [""])[0]
