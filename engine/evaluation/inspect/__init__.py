"""Inspect built kernels: their machine code, library calls and hardware counters.

No module in this folder affects a measured time.
"""
