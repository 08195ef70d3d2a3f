"""The runner: the short-lived, isolated process that loads and calls one kernel.

``__main__`` runs a compiled kernel. ``__main__`` imports only the standard library, so it starts in milliseconds.
``zygote`` imports PyTorch and forks the runners of Python kernels.
"""
