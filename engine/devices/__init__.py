"""This machine's GPUs and CPU: their properties, load, and CUDA occupancy limits. Never imports torch."""
