"""The search: rounds of ideas, kernels and verdicts for several problems at once, steered by requests.

The search loop stores no state. It reads the session's state and starts all missing work. Therefore, a resumed session
continues from its last recorded event.
"""
