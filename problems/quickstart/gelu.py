"""GELU of minGPT: the tanh approximation in primitive operators (Hendrycks and Gimpel, 2016)."""

import math

import torch
from torch import nn

ROWS = 1000
COLUMNS = 1500


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
