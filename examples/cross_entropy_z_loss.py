"""Cross entropy with a penalty on the log-normaliser, as large language models are trained. An expert
reads the logits once: log-sum-exp, the target's logit and the penalty leave the row as one number."""

import torch
import torch.nn as nn

ROWS = 16384
CLASSES = 8192
PENALTY = 1e-4


class Model(nn.Module):
    def __init__(self, penalty: float):
        super().__init__()
        self.penalty = penalty

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        normaliser = torch.logsumexp(logits, dim=1)
        chosen = logits.gather(1, target.unsqueeze(1)).squeeze(1)
        return (normaliser - chosen + self.penalty * normaliser.square()).mean()


def get_inputs():
    return [torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return [PENALTY]
