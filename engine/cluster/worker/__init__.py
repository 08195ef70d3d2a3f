"""A worker's host: processes that join its devices to a cluster, and processes that judge. Orders from engines enter
through Dask; reports and heartbeats leave.
"""
