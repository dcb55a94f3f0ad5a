"""Checks of a saved ``OptimizedModule`` that launch kernels; run by ``test_api.py`` under Triton's interpreter."""

from __future__ import annotations

import copy
import os

import pytest
import torch

import mtmc
from tests.cpu.api_block import Block, X


@pytest.fixture
def optimized() -> mtmc.OptimizedModule:
    module = Block().eval()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return mtmc.load_optimized(os.environ["SAVED_BLOCK"], module)


def test_computes_the_same_with_generated_kernels(optimized: mtmc.OptimizedModule) -> None:
    assert optimized.report.optimized and optimized.report.actions
    assert "triton.jit" in optimized._source
    x = torch.randn(8, 32)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), optimized.original(x))
        torch.testing.assert_close(optimized(x=x), optimized.original(x), msg="by keyword")


def test_is_a_drop_in(optimized: mtmc.OptimizedModule) -> None:
    original = optimized.original
    assert list(optimized.state_dict()) == list(original.state_dict())
    assert [n for n, _ in optimized.named_parameters()] == [n for n, _ in original.named_parameters()]
    assert optimized.layers[0] is original.layers[0]
    changed = {name: tensor * 0.5 for name, tensor in optimized.state_dict().items()}
    optimized.load_state_dict(changed)
    with torch.no_grad():
        torch.testing.assert_close(optimized(X), original(X))
        assert torch.equal(original.layers[0].weight, changed["layers.0.weight"])


def test_a_copy_is_a_module_of_its_own(optimized: mtmc.OptimizedModule) -> None:
    twin = copy.deepcopy(optimized)
    with torch.no_grad():
        twin.layers[0].weight.zero_()
        assert not torch.equal(twin(X), optimized(X))
        torch.testing.assert_close(optimized(X), optimized.original(X), rtol=1e-4, atol=1e-4)
