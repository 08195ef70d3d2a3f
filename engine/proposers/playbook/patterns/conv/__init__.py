"""Convolutions in one or two dimensions, with bias, an elementwise epilogue and max pooling.

This folder recognizes problems with one convolution, proposes transformations, and writes kernel files.
"""
