"""Export kernels as a Python wheel: specifications and sources enter; a wheel with PyTorch operators leaves.

Each exported package contains the module ``runtime``, but no other code of kernel-tui.
"""
