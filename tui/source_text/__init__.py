"""Source text as data: colored spans and diffs. The monitor and the report use them to show kernels."""
