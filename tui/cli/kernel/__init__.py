"""Commands for individual kernels: eval, compare, build, sass and profile."""
