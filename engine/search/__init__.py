"""The search: rounds of ideas, kernels and verdicts for several problems at once, steered by commands.

The loop keeps no truth of its own. It looks at the folded state and does what is missing, so that a resumed session
continues exactly where its events end.
"""
