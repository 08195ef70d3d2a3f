"""Commands for individual kernels: eval, compare, build, sass, profile."""
