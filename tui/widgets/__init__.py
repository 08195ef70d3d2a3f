"""Panes of the monitor, one file each."""
