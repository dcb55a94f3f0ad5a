"""Run by ``test_dynamic.py`` where Triton interprets: a saved module with a dynamic batch, on other batches."""

import os

import torch

import mtmc
from tests.cpu.dynamic_block import Block


def test_other_batches_give_the_original_s_results() -> None:
    module = Block().eval()
    optimized = mtmc.load_optimized(os.environ["SAVED_BLOCK"], module)
    assert optimized.report.optimized
    with torch.no_grad():
        for batch in (1, 5, 8, 64):
            x = torch.randn(batch, 64)
            torch.testing.assert_close(optimized(x), module(x), rtol=1e-6, atol=1e-7)
