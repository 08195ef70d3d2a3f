"""Problems: load a KernelBench-format file, derive what a kernel must look like."""
