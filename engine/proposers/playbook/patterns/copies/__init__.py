"""Problems whose outputs are only copies of input elements: permutations, slices, concatenations, and triangles."""
