"""Sessions that leave the machine that recorded them: packed copies, and the sessions that ship with kernel-tui."""
