"""Helpers for this machine's processes, files and memory. They do not depend on the search."""
