"""Source text as data: colored spans and diffs. The monitor and the report draw these spans and diffs of kernels."""
