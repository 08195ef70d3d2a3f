"""Build, check and time kernels. The input is a problem and a kernel's source; the result is a verdict."""
