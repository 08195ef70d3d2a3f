"""Matmuls with an elementwise epilogue.

This folder recognizes problems with one matmul, proposes transformations, and writes kernel files. The folder
``tiles`` contains code that matmuls share with convolutions and attention.
"""
