from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtmc.capture import capture_module
from mtmc.capture.library import run_program
from mtmc.errors import CaptureError
from mtmc.ir.index import Dim
from mtmc.ir.program import Opaque, Role
from tests.cpu.capture.agreement import Fn, assert_agrees, bindings

X = torch.linspace(-3, 3, 24).reshape(4, 6)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.sum(0)
        return x * self.total


class Memory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.ones(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.hidden + x)
        return self.hidden * 2


def test_updates_are_explicit() -> None:
    program = assert_agrees(Counter(), X)
    assert [u.state for u in program.updates] == ["total"]
    program = assert_agrees(Memory(), X)
    assert [u.state for u in program.updates] == ["hidden"]


def test_capture_changes_nothing_of_the_module() -> None:
    module = Counter()
    capture_module(module, (X,))
    assert torch.equal(module.total, torch.zeros(6))


IN_PLACE = {
    "relu_": lambda x: F.relu(x * 2, inplace=True) + 1,
    "add_": lambda x: (x * 2).add_(x, alpha=3),
    "chain": lambda x: (x + 0).mul_(2).clamp_(-1, 1),
    "fill": lambda x: torch.zeros_like(x).fill_(2.5) + x,
    "copy_": lambda x: torch.empty_like(x).copy_(x) * 2,
    "through_view": lambda x: _view_write(x),
    "column": lambda x: _column_write(x),
    "masked": lambda x: (x * 1).masked_fill_(x > 0, 0.0),
}


def _view_write(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1).add_(1)
    return y + y.T.T


def _column_write(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 1:3] = 7.0
    y[0] += 1
    return y * 1


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    assert_agrees(Fn(IN_PLACE[name]), X, opaque={"through_view": 1, "column": 2}.get(name, 0))


def test_a_changed_input_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"test_state.py:\d+: .*args_0"):
        capture_module(Fn(lambda x: x.add_(1) * 2), (X.clone(),))


def test_dead_code_is_dropped() -> None:
    def forward(x: Tensor) -> Tensor:
        unused = (x @ x.T).softmax(0)
        unused.add_(1)
        return x + 1

    assert [k.op for k in assert_agrees(Fn(forward), X).kernels] == ["add"]


def test_random_draws_are_declared() -> None:
    program = capture_module(nn.Sequential(nn.Dropout(0.5), nn.ReLU()), (X,))
    assert program.kernels[0].spec == Opaque(("random",))
    program = capture_module(Fn(lambda x: x + torch.randn(6, device=x.device)), (X,))
    assert program.kernels[0].spec == Opaque(("random",))
    torch.manual_seed(3)
    values = run_program(program, {"args_0": X})
    torch.manual_seed(3)
    assert torch.equal(values[program.outputs[0]], X + torch.randn(6))
    assert capture_module(nn.Dropout(0.5).eval(), (X,)).kernels == ()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_stay_whole(kind: type[nn.Module]) -> None:
    module = kind(6, 5, num_layers=2, batch_first=True, bidirectional=True)
    program = assert_agrees(Fn2(module), torch.randn(3, 7, 6), opaque=1)
    kernel = next(k for k in program.kernels if isinstance(k.spec, Opaque))
    assert kernel.calls[-1].target.startswith("aten.")


class Fn2(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0] + 1


def test_attention_stays_whole() -> None:
    q = torch.randn(2, 2, 5, 8)
    assert_agrees(Fn(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True)), q, opaque=1)


def test_results() -> None:
    assert assert_agrees(Fn(lambda x: [x + 1, x * 2]), X).output_tree == "list"
    assert assert_agrees(Fn(lambda x: (x, x * 2)), X).outputs[0] == "args_0"
    with pytest.raises(CaptureError, match="dict"):
        capture_module(Fn(lambda x: {"y": x + 1}), (X,))


def test_dynamic_batch() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1), nn.Flatten(), nn.LayerNorm(5))
    batch = Dim("batch", 4096)
    program = assert_agrees(module, torch.randn(4, 6), dynamic=batch)
    assert program.dims == (batch,)
    assert all(str(program.buffer(k.writes[0]).shape[0]) == "batch" for k in program.kernels)
    x = torch.randn(7, 6)  # another size through the same Program
    tensors = bindings(program, module, (x,))
    torch.testing.assert_close(run_program(program, tensors, dims={"batch": 7})[program.outputs[0]], module(x))
    assert_agrees(Fn(lambda x: x.mean(0) + x.reshape(-1).sum()), torch.randn(4, 6), dynamic=batch)


class Table(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        weights = torch.tensor([1.0, float("inf"), -2.0])
        weights[1] = 4.0
        return x * weights


def test_constants_made_in_forward() -> None:
    module = nn.Sequential(Table(), nn.Sequential(Table()))
    program = assert_agrees(module, torch.randn(2, 3), opaque=2)
    sources = [b.source for b in program.buffers if b.role is Role.CONSTANT]
    assert sources == ["torch.tensor([1.0, float('inf'), -2.0], dtype=torch.float32)"] * 2


def test_a_changed_attribute_is_refused() -> None:
    module = Counter()
    module.total = None
    del module._buffers["total"]
    module.total = torch.zeros(6)
    with pytest.raises(CaptureError, match="total"):
        capture_module(module, (X,))
