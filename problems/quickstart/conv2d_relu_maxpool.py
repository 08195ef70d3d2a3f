"""Convolution, ReLU and overlapping max pooling: AlexNet's first stage, on small images."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH, CHANNELS, SIDE = 8, 3, 120
FILTERS, KERNEL, STRIDE, PADDING = 48, 7, 2, 3


class Model(nn.Module):
    def __init__(self, channels: int, filters: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.conv(x)), kernel_size=3, stride=2)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS, KERNEL, STRIDE, PADDING]
