"""Export kernels as a Python wheel. The input is specifications and sources; the result is a wheel with PyTorch
operators.

Each exported package contains the module ``runtime`` but no other kernel-tui code.
"""
