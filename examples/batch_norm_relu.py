"""Batch norm in training mode, then ReLU; the running statistics change on every call. An expert splits
the statistics of a channel across programs, combines them, and normalises and clips in one second pass."""

import torch
import torch.nn as nn

BATCH = 64
CHANNELS = 64
HEIGHT = 112
WIDTH = 112


class Model(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS]
