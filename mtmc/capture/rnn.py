"""LSTM, GRU and plain recurrent layers as one operation each while torch.export traces.

They are composite in ATen: under fake tensors a trace walks through every step of every layer, which takes minutes for
long sequences. While :func:`whole_rnns` is active, ``torch._VF.lstm`` and its relatives are stand-ins with a shape
function; :data:`ATEN` names the ATen operation that each stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_COMMON = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
)

ATEN = {
    "mtmc.lstm.default": "aten.lstm.input",
    "mtmc.gru.default": "aten.gru.input",
    "mtmc.rnn_tanh.default": "aten.rnn_tanh.input",
    "mtmc.rnn_relu.default": "aten.rnn_relu.input",
}

_library = torch.library.Library("mtmc", "DEF")  # noqa: TOR901 - lives as long as the process
_library.define(f"lstm(Tensor input, Tensor[] hx, {_COMMON}) -> (Tensor, Tensor, Tensor)")
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    _library.define(f"{_name}(Tensor input, Tensor hx, {_COMMON}) -> (Tensor, Tensor)")


def _output(x: torch.Tensor, hidden: int, bidirectional: bool, batch_first: bool) -> torch.Tensor:
    """As cuDNN and the CPU leave it: time is always the outermost axis in memory."""
    width = hidden * (2 if bidirectional else 1)
    if batch_first and x.dim() == 3:
        return x.new_empty((x.shape[1], x.shape[0], width)).transpose(0, 1)
    return x.new_empty((*x.shape[:-1], width))


@torch.library.register_fake("mtmc::lstm", lib=_library)
def _lstm_shape(
    x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    h, c = hx
    out = _output(x, h.shape[-1], bidirectional, batch_first)
    return out, h.new_empty(h.shape), c.new_empty(c.shape)


def _rnn_shape(
    x: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return _output(x, hx.shape[-1], bidirectional, batch_first), hx.new_empty(hx.shape)


for _name in ("gru", "rnn_tanh", "rnn_relu"):
    torch.library.register_fake(f"mtmc::{_name}", _rnn_shape, lib=_library)


@contextmanager
def whole_rnns() -> Iterator[None]:
    """Recurrent layers called inside are traced as one operation; packed sequences go their usual way."""
    saved = {name: getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

    def stand_in(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        whole = getattr(torch.ops.mtmc, name)

        def call(*args: Any) -> Any:
            packed = not isinstance(args[-1], bool) or not isinstance(args[3], bool)
            return original(*args) if packed else whole(*args)

        return call

    for name, original in saved.items():
        setattr(torch._VF, name, stand_in(original, name))
    try:
        yield
    finally:
        for name, original in saved.items():
            setattr(torch._VF, name, original)
