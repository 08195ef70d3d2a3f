"""The "command" provider: any program that reads a prompt on stdin and writes the reply to stdout."""
