"""Export a kernel as one C++ or CUDA file with a ``main`` that checks and times it. The program runs without PyTorch.
The file contains some elements of the reference's outputs, which ``expected`` computes in a child process with PyTorch.
"""
