"""Chains of elementwise operators such as gelu.

This folder turns a problem into a pointwise program, transformations of a recipe, and kernel files
(``templates/pointwise*.j2``).
"""
