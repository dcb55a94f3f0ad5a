"""A module as a problem: an exported program that another process re-creates without the class."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mtmc.errors import ProblemError
from mtmc.problem import Problem
from mtmc.problem.module import save_module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.fc(x)))


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def test_a_saved_module_computes_the_same_with_the_same_state_dict(tmp_path: Path) -> None:
    block, x = Block().eval(), torch.randn(16, 8)
    problem = save_module(block, [x], tmp_path)
    again = Problem(**problem.model_dump(mode="json"))
    module, inputs = again.instantiate()
    assert torch.equal(inputs[0], x)
    assert set(module.state_dict()) == set(block.state_dict())
    assert torch.equal(module(*inputs), block(x))
    assert again.init_inputs() == []


def test_other_seeds_permute_the_example_inputs(tmp_path: Path) -> None:
    x = torch.randn(16, 8)
    problem = save_module(Block().eval(), [x], tmp_path)
    (y,) = problem.make_inputs(seed=1)
    assert not torch.equal(x, y) and torch.equal(x.flatten().sort().values, y.flatten().sort().values)


def test_what_export_refuses_is_a_problem_error(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="Branching can't be exported"):
        save_module(Branching(), [torch.randn(3)], tmp_path)
