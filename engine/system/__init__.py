"""Helpers for this machine's processes, files and memory. No helper depends on the search."""
