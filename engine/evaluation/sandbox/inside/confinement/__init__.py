"""Drop a runner's privileges before it loads a kernel: namespaces, files, system calls."""
