"""Send a session's parameters, verdicts and best kernels to an experiment tracker.

A process of its own reads the event log, which holds everything that a tracker needs. So tracking cannot slow the
engine, and a tracker that cannot be reached receives its metrics later.
"""
