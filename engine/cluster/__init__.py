"""Judge on other hosts, over dask.distributed.

The engine sends each kernel as source, and the host that judges it builds it. What enters: requests of the search
(:class:`~engine.evaluation.evaluator.Evaluator`). What leaves: verdicts, with the host and device that gave them.

Dask provides membership, encryption and queueing. Everything else is here: heartbeats, deadlines, retries on another
host, and the child process that judges.
"""
