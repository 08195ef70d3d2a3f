"""The terminal side of kernel-tui: the command line and the monitor. Never imports torch or a model SDK."""
