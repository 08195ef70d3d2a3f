"""Tiles of a product of matrices, shared by the families whose heavy loop is one: matmul and conv."""
