"""A module as a user has it in a notebook."""

from __future__ import annotations

import torch


class Block(torch.nn.Module):
    """No file, submodules, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 16)])
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers[0](self.norm(x))) * self.scale


X = torch.linspace(-2, 3, 8 * 32).reshape(8, 32)
