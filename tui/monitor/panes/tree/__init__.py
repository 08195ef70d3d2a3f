"""The tree pane: rows of problems, ideas and kernels, their filter, and their drawing."""
