"""Terminal integration for the monitor: keyboard input, pasted text, clipboard, ASCII mode, and the user's editor."""
