"""A search over time: its best kernels, its spending, its device activity, and its progress."""
