"""Report a session as a benchmark. The package reads a stored session's events and returns figures, JSON, Markdown and
HTML.
"""
