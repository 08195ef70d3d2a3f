"""Screens of the monitor, one file each."""
