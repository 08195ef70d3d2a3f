"""Report a session as a benchmark: read a stored session's events, and return figures, JSON, Markdown and HTML."""
