"""Convolutions in one or two dimensions with bias, elementwise work and max pooling behind them."""
