"""Turn a traced reference into a program.

Input: the problem's graph of ATen operators. Output: a program (``ir``), its operands' layouts, and a compute-heavy
operator's epilogue. For an unsupported graph, the exception ``Unsupported`` gives the reason.
"""
