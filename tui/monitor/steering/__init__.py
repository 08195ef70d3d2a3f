"""Steer a running search from the monitor: seeds, the requests behind each key, and undo."""
