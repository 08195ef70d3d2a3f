"""Row reductions such as softmax and layernorm.

This folder turns a problem into a row program, transformations of a recipe, and kernel files (``templates/rows*.j2``).
"""
