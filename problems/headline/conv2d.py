"""AlexNet's first convolution with bias, on a batch of 100 images."""

import torch
from torch import nn

BATCH, CHANNELS, SIDE = 100, 3, 224
FILTERS, KERNEL, STRIDE, PADDING = 96, 11, 4, 2


class Model(nn.Module):
    def __init__(self, channels: int, filters: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, FILTERS, KERNEL, STRIDE, PADDING]
