"""Convolutions by warpgroup products that stream down the rows of images (Hopper).

``plan`` resolves a recipe's choices, ``file`` writes the kernel, and ``transformations`` lists what a search
may change.
"""
