"""The runner: the short-lived, isolated process that loads and calls one kernel.

``__main__`` runs a compiled kernel with the standard library alone, so it starts in milliseconds and contains no
secrets. ``zygote`` imports PyTorch and forks the runners of Python kernels.
"""
