"""The report of a search as one HTML file. A session's reader enters; the page leaves, without scripts or links."""
