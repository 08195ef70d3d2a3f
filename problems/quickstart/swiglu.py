"""SwiGLU activation: the SiLU of a gate times a value."""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS = 1500
FEATURES = 4000


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(TOKENS, FEATURES), torch.randn(TOKENS, FEATURES)]


def get_init_inputs():
    return []
