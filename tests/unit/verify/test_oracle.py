"""The float64 oracle: precise whatever the program names, and on the reference's own random draws."""

from __future__ import annotations

import copy

import torch
from torch import nn

from mtmc.verify import oracle


class Sly(nn.Module):
    """Names float32 in every way that would round an oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.bn = nn.BatchNorm1d(64)
        self.h = torch.randn(64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.bn(self.fc(x).float()) + torch.zeros(64, dtype=torch.float32) + torch.tensor(0.1)
        return y.to(torch.bfloat16).to(torch.float32) * self.h, y.argmax(1)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.3) + torch.rand_like(x) + torch.randn(x.shape[-1])


def reseed() -> None:
    torch.manual_seed(5)


def test_no_rounding_in_between() -> None:
    module, x = Sly(), torch.randn(32, 64)
    (value, index), twin = oracle.run(copy.deepcopy(module), [x], reseed, torch.float32)
    double = copy.deepcopy(module).double()
    with torch.no_grad():
        y = double.bn(double.fc(x.double())) + 0.1
    assert value.dtype is torch.float64 and index.dtype is torch.int64
    assert float((value - y * module.h.double()).abs().max()) < 1e-13
    assert torch.allclose(twin.bn.running_mean, double.bn.running_mean, rtol=0, atol=1e-15)


def test_the_module_itself_is_left_alone() -> None:
    module = Sly()
    before = copy.deepcopy(module.state_dict())
    oracle.run(module, [torch.randn(32, 64)], reseed, torch.float32)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert torch.get_default_dtype() is torch.float32


def test_random_operations_draw_what_the_reference_draws() -> None:
    module, x = Noisy(), torch.randn(100, 64)
    exact, _ = oracle.run(module, [x], reseed, torch.float32)
    reseed()
    assert torch.allclose(exact.float(), module(x), atol=1e-6)


def test_parts_agree_with_the_whole() -> None:
    module, x = nn.Sequential(nn.Linear(16, 8), nn.Softmax(-1)), torch.randn(37, 16)
    with torch.no_grad():
        outputs = module(x)
    whole, _ = oracle.run(module, [x], reseed, torch.float32)
    parts = oracle.run_in_parts(module, [x], outputs, reseed, 5, torch.float32)
    assert torch.allclose(parts, whole, rtol=0, atol=1e-14)


def test_parts_are_refused_where_rows_depend_on_each_other() -> None:
    class Along(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0)

    x = torch.rand(37, 16)
    assert oracle.run_in_parts(Along(), [x], x.cumsum(0), reseed, 5, torch.float32) is None
