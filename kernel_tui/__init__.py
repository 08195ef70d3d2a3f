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

import sys
from pathlib import Path

from kernel_tui.native import BuildError, load_c

# ``load_c`` builds with ``engine``, which an installed wheel keeps under ``_packages``.
if (_packages := Path(__file__).parent / "_packages").is_dir() and str(_packages) not in sys.path:
    sys.path.append(str(_packages))

__all__ = ["BuildError", "load_c"]
