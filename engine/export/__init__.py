"""What a search leaves for others: KernelBench solution files, training data, a report. Imports no torch."""


class ExportError(Exception):
    """This cannot be exported; the text says why and, where there is a way, what to do instead."""
