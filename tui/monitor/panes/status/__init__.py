"""The status lines: the session's main figures, and below them a notice, the activity, or the best speedups."""
