"""Drop a runner's privileges before it loads a kernel: restrict its namespaces, files and system calls."""
