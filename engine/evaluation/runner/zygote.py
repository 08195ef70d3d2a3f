"""The warm parent of all runners of ``.py`` kernels: has torch imported, forks a runner in milliseconds.

``python -m engine.evaluation.runner.zygote SOCKET CORES``: for each datagram {"kind", "isolate"} with the descriptors
of a control socket, a status pipe and an output pipe, a runner is forked, and its pid and a pidfd come back. This
process runs no threads of its own and never touches a GPU, or its children could use neither threads nor CUDA.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import socket
import sys
import warnings

# Before torch: its OpenMP reads where threads may run, and OpenBLAS would start some.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))

# Whoever asks whether there is a GPU must not start CUDA here: a process forked afterwards could not use it.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

from engine.quickly import uncollected  # noqa: E402

with uncollected():  # nor do runners copy pages of it for a collector's marks
    import torch

    from engine.evaluation.device import keep_freed_memory
    from engine.evaluation.runner import cuda, extensions, isolation, module, operators, wire
    from engine.evaluation.runner.__main__ import map_arena
    from engine.evaluation.runner.order import ModuleOrder

_COMPILED_BYTES = 2 << 30


def main() -> int:
    isolation.die_with_parent()
    requests = socket.socket(fileno=int(sys.argv[1]))
    extensions.install()
    # Libraries that torch brings start threads of their own, which wait for work and hold no lock.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    while (received := wire.receive(requests)) is not None:
        _reap()
        request, descriptors = received
        child = os.fork()
        if child == 0:
            requests.close()
            _be_runner(request["kind"], bool(request["isolate"]), *descriptors)
        answer = [os.pidfd_open(child)] if hasattr(os, "pidfd_open") else []
        wire.send(requests, {"pid": child}, tuple(answer))
        for descriptor in (*descriptors, *answer):
            os.close(descriptor)
    return 0


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _be_runner(kind: str, isolate: bool, control_descriptor: int, status: int, output: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        isolation.die_with_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(output)
        os.chdir("/")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        code = serve(socket.socket(fileno=control_descriptor), status, kind, isolate)
        sys.stdout.flush()
    finally:
        os._exit(code)


def serve(control: socket.socket, status: int, kind: str, isolate: bool) -> int:
    """The runner's life: isolate, load, answer calls until the judge is gone. Returns the exit code."""
    layers: list[str] = []
    if isolate:
        layers += isolation.enter_namespaces(status)
    else:
        isolation.report_to(status)
    wire.send(control, {"hello": os.getpid()})
    request = wire.receive(control)
    if request is None:
        return 0
    _, (order_descriptor, arena_descriptor, *further) = request
    with os.fdopen(order_descriptor, "rb") as file:
        order: ModuleOrder = pickle.load(file)
    torch.set_num_threads(order.threads)
    try:
        if kind == "cuda":
            driver = cuda.Driver()
            torch.cuda.init()
            stream = cuda.Stream(driver, legacy=True)
            gate = cuda.gate_of(driver, further)
            memory = module.device_memory(driver.import_memory(arena_descriptor, order.arena_bytes), order.arena_bytes)
        else:
            keep_freed_memory()
            memory = module.host_memory(map_arena(arena_descriptor, order.arena_bytes), order.arena_bytes)
            os.close(arena_descriptor)  # so that nobody maps it once more
    except (OSError, MemoryError, RuntimeError, cuda.CudaError) as error:
        wire.send(control, {"failed": "start", "text": str(error)})
        return 1
    _set_environment(order)
    layers += isolation.limit_resources(order.data_bytes, 256, _COMPILED_BYTES if order.compiles else 0)
    if isolate:
        layers += isolation.restrict_files(kind == "cuda", order.readable, order.writable)
        layers += isolation.restrict_calls(processes=order.compiles, timers=kind == "cuda")
    wire.send(control, {"isolated": layers})
    try:
        model = module.Model(order, memory)
        if kind == "cuda":
            driver.synchronize()
    except module.ModuleError as error:
        wire.send(control, {"failed": "load", "text": str(error)[:2000]})
        return 1
    except cuda.CudaError as error:
        wire.send(control, {"failed": "cuda", "text": str(error)})
        return 1
    kernel = module.CudaModule(model, driver, stream, gate) if kind == "cuda" else module.CpuModule(model)
    wire.send(control, {"ready": True, "weights": model.weights})
    _answer_calls(control, kernel, model)
    return 0


def _set_environment(order: ModuleOrder) -> None:
    os.environ[extensions.DIRECTORY_VARIABLE] = order.extensions
    if order.compiles:
        os.environ |= {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",  # noqa: PTH120
            "HOME": order.cache,
            "TMPDIR": order.cache,
            "TRITON_CACHE_DIR": f"{order.cache}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{order.cache}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }


def _answer_calls(control: socket.socket, kernel: module.CpuModule | module.CudaModule, model: module.Model) -> None:
    def tell(queued: bool) -> None:
        wire.send(control, {"queued": queued})

    while (request := wire.receive(control)) is not None:
        order = request[0]
        try:
            if order.get("operators"):
                run = functools.partial(kernel.run, order["slots"], order["flushes"], order["seed"])
                wire.send(control, {"code": 0, "operators": operators.working_operators(run)})
                continue
            if "forget" in order:
                model.forget()
                wire.send(control, {"code": 0})
                continue
            left = list[int]()
            if isinstance(kernel, module.CpuModule) and order.get("leave"):
                times, left = kernel.run_and_leave(order["slots"], order["seed"])
            elif isinstance(kernel, module.CudaModule) and "gate" in order:
                kernel.run_behind_gate(order["slots"], order["gate"], order["seed"], tell)
                times = list[float]()
            else:
                times = kernel.run(order["slots"], order["flushes"], order["seed"], order.get("warm"))
        except cuda.CudaError as error:
            wire.send(control, {"failed": "cuda", "text": str(error)})
            return
        except module.ModuleError as error:
            wire.send(control, {"code": 1, "error": str(error)})
        except Exception as error:
            text = model.describe(error)
            failed = {"failed": "cuda", "text": text} if "CUDA error" in text else {"code": 1, "error": text}
            wire.send(control, failed)
        else:
            wire.send(control, {"code": 0, "ms": times, "left": left})


if __name__ == "__main__":
    sys.exit(main())
