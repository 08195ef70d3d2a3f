"""The pattern of tensors that contain only copies: permutations, slices, concatenations, triangles."""
