"""Scaled dot-product attention in fp16, without a mask."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, HEADS, LENGTH, WIDTH = 32, 32, 512, 64


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs():
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float16) for _ in range(3)]


def get_init_inputs():
    return []
