"""A two-layer LSTM with a linear read-out of its last step. An expert keeps the weights and the state on
chip for all steps in one persistent kernel; step by step, the launches and not the arithmetic bind."""

import torch
import torch.nn as nn

BATCH = 32
STEPS = 128
INPUTS = 256
HIDDEN = 256
LAYERS = 2
CLASSES = 16


class Model(nn.Module):
    def __init__(self, inputs: int, hidden: int, layers: int, classes: int):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self.read_out = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        return self.read_out(states[:, -1])


def get_inputs():
    return [torch.randn(BATCH, STEPS, INPUTS)]


def get_init_inputs():
    return [INPUTS, HIDDEN, LAYERS, CLASSES]
