"""The intermediate representation: programs and the sizes in them.

``analysis`` lowers values to programs, this folder rewrites them, and ``patterns`` turns them into kernels.
"""
