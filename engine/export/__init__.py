"""Export a session as solution files, training data or a report. This package does not import torch."""


class ExportError(Exception):
    """A kernel or session cannot be exported. The message gives the reason and, if possible, a remedy."""
