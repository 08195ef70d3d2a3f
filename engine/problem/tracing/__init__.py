"""Trace a model into a graph of ATen operators without computing any values. Imports torch."""
