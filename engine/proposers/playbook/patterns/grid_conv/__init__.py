"""Convolutions over one to three dimensions, transposed or not, as products of shifted grids, with an elementwise
epilogue. The pattern ``conv`` comes first, and supports convolutions over one or two dimensions, except transposed
convolutions.
"""
