"""A session's state: the problems, rounds, ideas and kernels that follow from its events. All functions are pure."""
