"""Trace a model to a graph of ATen operators without computing any values. Imports torch."""
