"""Giving memory back: to the system, and to the other processes on the card."""

from __future__ import annotations

import gc

import torch

SLACK = 512 << 20
"""Bytes that a process may keep reserved and unused: giving back and taking again costs more than they are worth."""


def collect(device: str | torch.device, slack: int = SLACK) -> None:
    """Free what nothing refers to, and hand it to the card unless it is less than ``slack`` bytes."""
    gc.collect()
    if torch.device(device).type != "cuda":
        return
    torch.cuda.ipc_collect()
    if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > slack:
        torch.cuda.empty_cache()
