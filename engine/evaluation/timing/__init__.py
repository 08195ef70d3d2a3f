"""Time kernels, verify their clocks, and compute speedups with intervals from the measured times."""
