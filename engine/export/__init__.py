"""Export a session as solution files, training data or a report. Does not import torch."""


class ExportError(Exception):
    """The export is impossible. The message gives the reason and, if there is one, a remedy."""
