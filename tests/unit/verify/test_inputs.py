"""Input sets: reproducible, of the kind that their name says, and never rounded."""

from __future__ import annotations

import pytest
import torch

from mtmc.problem import load_problem
from mtmc.verify import inputs

PROBLEM = load_problem("""
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, i): return x
def get_inputs(): return [torch.rand(64, 48), torch.randint(0, 5, (7,)), 3]
""")


@pytest.mark.parametrize("name", [*inputs.SETS, "timed0", "timed1"])
def test_a_set_is_the_same_every_time_and_leaves_integers_alone(name: str) -> None:
    (a, i, n), (b, j, _) = (inputs.draw(PROBLEM, name, "cpu", 0) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(i, j) and n == 3 and int(i.max()) < 5


def test_sets_differ() -> None:
    values = [inputs.draw(PROBLEM, name, "cpu", 0)[0] for name in (*inputs.SETS, "timed0", "timed1")]
    assert all(not torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])


def test_wide_is_wide_and_exact() -> None:
    x = inputs.draw(PROBLEM, "wide", "cpu", 0)[0]
    original = PROBLEM.make_inputs("cpu", inputs.SETS["wide"].seed)[0]
    ratio = torch.log2(x / original)
    assert torch.equal(ratio, ratio.round()) and ratio.min() == -12 and ratio.max() == 12


def test_signs_has_zeros_and_both_signs() -> None:
    x = inputs.draw(PROBLEM, "signs", "cpu", 0)[0]
    shares = [(x == 0).float().mean(), (x < 0).float().mean(), (x > 0).float().mean()]
    assert all(share > 0.08 for share in shares)


def test_a_dynamic_batch_is_tried_smaller_and_larger_within_its_limit() -> None:
    size = PROBLEM.make_inputs("cpu", 0)[0].shape[0]
    problem = PROBLEM.model_copy(update={"batch_limit": size + 1})
    half, double = (inputs.draw(problem, name, "cpu", 0)[0] for name in inputs.BATCH_SETS)
    assert half.shape[0] == (size + 1) // 2 and double.shape[0] == size + 1
    assert torch.equal(double[size], double[0])
