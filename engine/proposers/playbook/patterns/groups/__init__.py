"""The pattern of last resort: a problem as a sequence of groups that other patterns recognize.

Input: the traced graph, and the other patterns. Output: one file with the kernels of all groups, which pass tensors to
each other through the workspace.
"""
