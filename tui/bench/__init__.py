"""Report a session as a benchmark: events of a stored session enter; figures, JSON, Markdown and HTML leave."""
