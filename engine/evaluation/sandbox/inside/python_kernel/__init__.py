"""Run a Python kernel: build the kernel's extensions, load the kernel, and call it on shared buffers."""
