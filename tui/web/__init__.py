"""The monitor in a browser: a local web server, and one monitor process per viewer."""
