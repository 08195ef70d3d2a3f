"""Build plain C++ or CUDA C from Python in about a second, and call it with tensors.

from kernel_tui import load_c

kernels = load_c('''
__global__ void twice(const float* x, float* out, long long n) { ... }
extern "C" int run(const float* x, float* out, long long n, cudaStream_t stream) {
    twice<<<(n + 255) / 256, 256, 0, stream>>>(x, out, n);
    return cudaGetLastError();
}''', "cu")
kernels.run(x, out, x.numel())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_tui.native import BuildError, load_c

__all__ = ["BuildError", "load_c"]


def __getattr__(name: str) -> Any:
    """Import ``load_c`` on first use. The command line also imports this package, but does not need ``load_c``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernel_tui import native

    return getattr(native, name)
