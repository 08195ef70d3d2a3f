"""A host that judges: the processes that join its devices to a cluster, and those that judge on them.

What enters: orders from engines, through Dask. What leaves: reports and heartbeats.
"""
