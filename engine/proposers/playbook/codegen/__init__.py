"""Generate the C++ and CUDA C++ code that all patterns share.

Input: a program's values, sizes and accesses. Output: expressions and statements in C++ or CUDA C++ (``dialect``,
``cpp``, ``cuda``), rendered templates, the signature of ``launch``, and assertions about sizes.
"""
