"""Cumulative sums and products over any dimension, with elementwise operators before and after."""
