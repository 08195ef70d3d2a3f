"""Judge kernels on other hosts, through dask.distributed.

The engine sends each kernel as source, and the judging host builds the kernel. Kernels from the search enter through
:class:`~engine.evaluation.evaluator.Evaluator`; verdicts leave, each with its host and device.

Dask provides membership, encryption and queueing. This package adds heartbeats, deadlines, retries on another host, and
the child process that judges.
"""
