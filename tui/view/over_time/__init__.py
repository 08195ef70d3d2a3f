"""A search over time: its best kernels, its spending, its devices' work, and its progress."""
