"""Attention of one new token per sequence in fp16: a single query reads all keys and values of its head."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, HEADS, KEYS, WIDTH = 16, 32, 4096, 128


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)


def get_inputs():
    q = torch.randn(BATCH, HEADS, 1, WIDTH, dtype=torch.float16)
    return [q, *(torch.randn(BATCH, HEADS, KEYS, WIDTH, dtype=torch.float16) for _ in range(2))]


def get_init_inputs():
    return []
