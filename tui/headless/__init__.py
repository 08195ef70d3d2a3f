"""Follow a search without the monitor: a live table on a terminal, plain lines elsewhere, or JSON lines."""
