"""Matmuls with an elementwise epilogue.

This folder turns a problem into a program with one matmul, transformations of a recipe, and kernel files. The folder
``tiles`` contains code that matmuls share with convolutions and attention.
"""
