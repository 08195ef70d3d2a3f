"""Attention: softmax(scale * q k^T) v, causal or not, as one operator or written in primitives."""
