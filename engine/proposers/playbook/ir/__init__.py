"""The intermediate representation: programs, and the named sizes in these programs.

``analysis`` lowers values to programs, this folder rewrites them, and ``patterns`` turns them into kernels.
"""
