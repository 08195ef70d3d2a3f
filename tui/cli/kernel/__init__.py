"""Commands on one kernel: eval, compare, build, sass, profile."""
