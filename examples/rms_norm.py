"""RMS norm written out as one writes it by hand: six small operations in eager mode. An expert makes it
one kernel that holds a row in registers: read once, reduce, scale, write once."""

import torch
import torch.nn as nn

TOKENS = 16384
WIDTH = 4096
EPS = 1e-6


class Model(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


def get_inputs():
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH, EPS]
