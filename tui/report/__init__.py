"""The report of a search as one HTML file.

The package reads a session and returns a page without scripts or external links.
"""
