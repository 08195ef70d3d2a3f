"""Attention: softmax(scale * q k^T) v, causal or not, as a single operator or built from primitives.

This folder turns a problem into an attention program, transformations of a recipe, and kernel files.
"""
