"""The terminal around the monitor: keyboard input, pasted text, clipboard, ASCII mode, the user's editor."""
