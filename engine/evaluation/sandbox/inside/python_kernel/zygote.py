"""The warm parent of all ``.py`` runners, which has already imported torch and forks a runner in milliseconds.

``python -m ...python_kernel.zygote SOCKET CORES``: each datagram {"kind", "isolate"} carries the descriptors of a
control socket and of the kernel's output. For each datagram, the process forks a runner and answers with the runner's
pid. The process does not start threads or use a GPU; otherwise, its children could not use threads or CUDA.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings

# Set both before importing torch, because torch's OpenMP reads the set of cores and OpenBLAS would start threads.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))

# Testing for a GPU must not start CUDA in this process, because forked processes could not use CUDA.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"

from engine.system.fast_start import uncollected  # noqa: E402

with uncollected():  # The garbage collector's marks would make runners copy memory pages.
    from engine.evaluation.sandbox.inside import wire
    from engine.evaluation.sandbox.inside.confinement import isolation
    from engine.evaluation.sandbox.inside.kernel import serve
    from engine.evaluation.sandbox.inside.python_kernel import extensions
    from engine.evaluation.sandbox.inside.python_kernel.module import Model


def main() -> int:
    isolation.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The system reaps this process's children.
    requests = socket.socket(fileno=int(sys.argv[1]))
    extensions.install()
    # PyTorch's libraries start threads, but these threads only wait for work and hold no locks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    while (received := wire.receive(requests)) is not None:
        request, descriptors = received
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _be_runner(request["kind"], bool(request["isolate"]), *descriptors)
        wire.send(requests, {"pid": child})
        for descriptor in descriptors:
            os.close(descriptor)
    return 0


def _be_runner(kind: str, isolate: bool, control: int, output: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        isolation.die_with_parent()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        code = serve(socket.socket(fileno=control), isolate, Model(kind))
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
