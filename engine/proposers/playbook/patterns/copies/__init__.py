"""The pattern of outputs that only copy elements: permutations, slices, concatenations, and triangles."""
