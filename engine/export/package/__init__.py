"""Export kernels as a Python wheel: specifications and sources enter; a wheel with PyTorch operators leaves.

``runtime`` is the code that each exported package contains. Nothing else of kernel-tui is in the package.
"""
