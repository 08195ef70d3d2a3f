"""Send a session's parameters, verdicts and best kernels to an experiment tracker.

A separate process reads the event log, so tracking cannot slow the engine. If the tracker is unreachable, this process
sends the metrics later.
"""
