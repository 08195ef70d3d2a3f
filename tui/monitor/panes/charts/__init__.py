"""Charts of a search: speedup, device activity and spending.

The functions take a model and a size, and return styled lines.
"""
