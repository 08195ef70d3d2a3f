"""Load problems in KernelBench's format. The input is a file; the result is a specification with the kernel
interface.
"""
