"""Source text as data: colored spans and diffs. The monitor and the report show kernels with them."""
