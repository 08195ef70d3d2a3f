"""Export a kernel as one C++ or CUDA file with a ``main`` that checks and times it. Needs no PyTorch to run.

The file holds the reference's outputs at some places. ``expected`` computes them in a child process with PyTorch.
"""
