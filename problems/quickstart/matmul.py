"""Product of two fp32 matrices of uneven sizes."""

import torch
from torch import nn

M, K, N = 720, 600, 750


class Model(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs():
    return [torch.randn(M, K), torch.randn(K, N)]


def get_init_inputs():
    return []
