"""The reference model and its data: load a problem file, draw inputs and weights, and compute outputs."""
