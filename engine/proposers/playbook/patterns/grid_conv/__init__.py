"""Convolutions over one to three dimensions, transposed or not, as products of shifted grids, with an elementwise
epilogue. ``conv`` comes first: it takes convolutions over one or two dimensions that are not transposed.
"""
