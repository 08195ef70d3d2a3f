"""The ``kernel-tui`` commands: one file per command, in groups. Startup imports only click."""
