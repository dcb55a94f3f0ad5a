"""Charbonnier loss, a smooth relative of Huber's, averaged over everything. An expert reads both inputs
once: each program sums its share in registers, and a second small kernel adds up the partial sums."""

import torch
import torch.nn as nn

ROWS = 8192
COLS = 8192
SOFTNESS = 0.1


class Model(nn.Module):
    def __init__(self, softness: float):
        super().__init__()
        self.softness = softness

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        distance = torch.sqrt((prediction - target) ** 2 + self.softness**2) - self.softness
        return distance.mean()


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [SOFTNESS]
