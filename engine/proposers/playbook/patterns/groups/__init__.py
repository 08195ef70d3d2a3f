"""The pattern of last resort: a problem as a sequence of groups, each of which another pattern recognizes.

Input: the traced graph, and the other patterns. Output: kernels for every group in one file, which pass tensors to
each other through the workspace.
"""
