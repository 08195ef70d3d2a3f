"""Output of the command line: tables, progress lines and messages on standard output and standard error."""
