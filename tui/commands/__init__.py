"""The commands of ``kernel-tui``, one file per group. Nothing but click is imported before a command runs."""
