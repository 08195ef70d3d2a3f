"""The first half of a transformer's feed-forward block in bf16: a linear layer with bias, then GELU."""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, WIDTH, HIDDEN = 8192, 4096, 16384


class Model(nn.Module):
    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, hidden, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.up(x), approximate="tanh")


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
