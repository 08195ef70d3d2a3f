"""Convolutions over one, two or three dimensions, transposed or not, as products over shifted grids, with an elementwise
epilogue. ``conv`` comes first, and this pattern takes what it refuses.
"""
