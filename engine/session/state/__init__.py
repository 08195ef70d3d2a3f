"""A session's state: events folded into problems, rounds, ideas and kernels. All functions are pure."""
