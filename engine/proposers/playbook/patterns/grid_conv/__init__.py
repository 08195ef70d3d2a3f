"""Convolutions over one to three dimensions, transposed or not, as products of shifted grids, with an elementwise
epilogue. The playbook tries the pattern ``conv`` first. ``conv`` supports convolutions over one or two dimensions,
except transposed convolutions.
"""
