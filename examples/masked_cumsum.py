"""Running sum of the entries that a mask keeps. An expert applies the mask on load inside the scan:
the masked copy is never stored, and each row is read once in blocks that carry their sum along."""

import torch
import torch.nn as nn

ROWS = 8192
STEPS = 16384


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x * mask, dim=1)


def get_inputs():
    return [torch.randn(ROWS, STEPS), torch.rand(ROWS, STEPS) < 0.5]


def get_init_inputs():
    return []
