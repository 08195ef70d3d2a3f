"""Compare kernels or sessions side by side."""
