"""State: found in all its places, saved, restored, assigned."""

from __future__ import annotations

import torch
from torch import nn

from mtmc.verify import state


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.hidden = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.hidden = torch.tanh(self.hidden + x.mean(0))
        return self.bn(x) + self.hidden


def test_every_place_is_found() -> None:
    names = set(state.updates(Stateful()))
    assert names == {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked", "!seen", "!hidden"}
    assert "bn.weight" in state.everything(Stateful())


def test_a_forward_can_be_undone() -> None:
    module, x = Stateful(), torch.randn(8, 4)
    snapshot = state.Snapshot(module)
    with torch.no_grad():
        first = module(x)
        assert set(snapshot.changed()) == set(state.updates(module))
        snapshot.restore()
        assert snapshot.changed() == []
        assert torch.equal(module(x), first)


def test_assign_reports_what_is_not_there() -> None:
    module = Stateful()
    missing = state.assign(
        module, {"!hidden": torch.ones(4), "!other": torch.ones(1), "bn!running_mean": torch.ones(4)}
    )
    assert missing == ["!other"] and bool((module.hidden == 1).all()) and bool((module.bn.running_mean == 1).all())
