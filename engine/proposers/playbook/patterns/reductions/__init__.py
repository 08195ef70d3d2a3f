"""Reductions over any dimensions: sums over a middle dimension, batch statistics, positions of extrema, and products.

A pass folds parts of rows into states in the workspace, and merges the states. The last step writes the outputs.
"""
