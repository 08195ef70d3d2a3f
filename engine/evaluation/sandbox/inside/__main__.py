"""The runner of one compiled kernel, which calls ``launch`` of a shared library with one slot's buffer addresses.

Arguments: the descriptor of the control socket, "cpu" or "cuda", 1 to isolate the process, and the cores to use. The
runner imports only the standard library, so that it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Iterator, Sequence

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 5)[0])  # noqa: PTH100

from engine.evaluation.sandbox.inside.confinement import isolation
from engine.evaluation.sandbox.inside.cuda import CudaError
from engine.evaluation.sandbox.inside.kernel import Kernel, LaunchFailed, NotLoaded, serve

TYPE_CHECKING = False  # Importing typing takes milliseconds.
if TYPE_CHECKING:
    from engine.evaluation.sandbox.inside.backend import Backend, Call
    from engine.evaluation.sandbox.inside.kernel import Message


class CompiledKernel(Kernel):
    """A kernel in a shared library, which the judge passes as a file."""

    def load(self, backend: Backend, kernel: int, base: int, order: Message) -> Message:
        library, nbytes = ctypes.CDLL(f"/proc/self/fd/{kernel}", mode=os.RTLD_NOW), 0
        if hasattr(library, "workspace_bytes"):
            library.workspace_bytes.restype = ctypes.c_size_t
            nbytes = library.workspace_bytes()
        # Rounding a larger size up in C code could overflow to almost zero.
        if nbytes > order["policy"]["workspace_most_bytes"]:
            raise NotLoaded(f"the runner cannot allocate a workspace of {nbytes:,} bytes")
        try:
            launch = library.launch
            self._last_error = library.kernel_tui_last_error if self.kind == "cuda" else None
            workspace = backend.allocate(nbytes) if nbytes else None
        except (AttributeError, CudaError) as error:
            raise NotLoaded(str(error)) from error
        launch.restype = ctypes.c_int
        last = ctypes.c_void_p(workspace), *backend.launch_arguments
        self._calls = [
            (launch, (*(ctypes.c_void_p(base + offset) for offset in slot), *last)) for slot in order["slots"]
        ]
        return {"workspace_bytes": nbytes}

    def bind(self, slots: Sequence[int]) -> Iterator[tuple[int, Sequence[Call]]]:
        yield slots[-1], [self._calls[slot] for slot in slots]

    def keep(self, slot: int, result: int) -> None:
        if code := result or (self._last_error() if self._last_error is not None else 0):
            raise LaunchFailed(code)


def main(control: str, kind: str, isolate: str, cores: str) -> None:
    isolation.die_with_parent()
    os.sched_setaffinity(0, map(int, cores.split(",")))
    code = serve(socket.socket(fileno=int(control)), isolate == "1", CompiledKernel(kind))
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
