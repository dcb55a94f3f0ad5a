"""Greedy decoding: the best token after a bias on the logits. An expert adds the bias on load and reduces
value and index together, so that the biased logits are never stored and each logit is read once."""

import torch
import torch.nn as nn

ROWS = 4096
VOCABULARY = 32768


class Model(nn.Module):
    def __init__(self, vocabulary: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(vocabulary))

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.argmax(logits + self.bias, dim=-1)


def get_inputs():
    return [torch.randn(ROWS, VOCABULARY)]


def get_init_inputs():
    return [VOCABULARY]
