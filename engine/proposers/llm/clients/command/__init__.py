"""The provider "command": any program that reads a prompt on stdin and writes the reply to stdout."""
