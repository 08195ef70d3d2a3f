"""Drop a runner's permissions before it loads a kernel: namespaces, files, system calls."""
