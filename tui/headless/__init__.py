"""Follow a search without the monitor, with a live table on a terminal and plain or JSON lines elsewhere."""
