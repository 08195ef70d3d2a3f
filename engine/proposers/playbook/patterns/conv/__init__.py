"""Convolutions in one or two dimensions, with bias, an elementwise epilogue and max pooling.

This folder turns a problem into a program with one convolution, transformations of a recipe, and kernel files.
"""
