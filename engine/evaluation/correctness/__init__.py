"""Decide whether a kernel's outputs are correct. The result is a comparison or a rejection.

Inputs, expected outputs and fp64 references never leave the judge.
"""
