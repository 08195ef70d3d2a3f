"""Tiled matrix products, which matmuls, convolutions and attention share.

Input: operands and an epilogue. Output: the tiles' C code, and the transformations and knobs that shape the tiles.
"""
