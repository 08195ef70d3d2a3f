"""The intermediate representation: programs, and the named sizes in these programs.

The folder ``analysis`` creates programs, this folder rewrites programs, and ``patterns`` turns programs into kernels.
"""
