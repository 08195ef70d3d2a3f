"""Convolutions on Hopper whose blocks stream down image rows and multiply with wgmma.

``plan`` resolves a recipe's choices, ``file`` writes the kernel, and ``transformations`` lists the changes that a
search may try.
"""
