"""Reference problems in KernelBench's format, shipped as data files."""
