"""Source text as data: colored spans and diffs. Kernels enter; the monitor and the report draw what leaves."""
