"""Workers: where evaluations run."""
