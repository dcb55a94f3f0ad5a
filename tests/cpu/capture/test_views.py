from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mtmc.ir.program import Opaque
from tests.cpu.capture.agreement import Fn, assert_agrees, lowered

X = torch.arange(120.0).reshape(4, 5, 6)

VIEWS = {
    "transpose": lambda x: x.transpose(0, 2) + 1,
    "permute": lambda x: x.permute(1, 2, 0) * 2,
    "slice": lambda x: x[1:3, ::2, 1:] + 1,
    "select": lambda x: x[:, 2] + x[:, -1],
    "view": lambda x: x.view(20, 6).view(2, 10, 3, 2) + 1,
    "view_of_permuted": lambda x: x.permute(2, 0, 1).reshape(6, 20) + 1,
    "unsqueeze": lambda x: x.unsqueeze(1) + x.unsqueeze(0),
    "expand": lambda x: x[:, :1].expand(4, 5, 6) + x,
    "expand_as": lambda x: x[:, :, :1].expand_as(x) * x,
    "unfold": lambda x: x.unfold(2, 3, 2) + 1,
    "diagonal": lambda x: x.diagonal(0, 0, 1) + 1,
    "chunk": lambda x: x.chunk(2, 2)[0] * x.chunk(2, 2)[1],
    "split": lambda x: sum(part.sum() for part in x.split([2, 3], 1)),
    "unbind": lambda x: x.unbind(0)[1] + x.unbind(0)[3],
    "flatten": lambda x: x.flatten(1) + 1,
    "squeeze": lambda x: x[:, :1].squeeze(1) + 1,
    "movedim": lambda x: x.movedim(0, 2) + 1,
    "T": lambda x: x[0].T + 1,
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5) + 1,
    "narrow": lambda x: x.narrow(1, 1, 3) + 1,
    "window": lambda x: x[:, :4].reshape(4, 2, 2, 2, 3).permute(0, 1, 3, 2, 4).reshape(16, 6) + 1,
    "broadcast": lambda x: torch.broadcast_tensors(x[:, :1], x)[0] + 1,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_no_kernels(name: str) -> None:
    program = assert_agrees(Fn(VIEWS[name]), X)
    assert not any(call.view for kernel in program.kernels for call in kernel.calls[-1:])


COPIES = {
    "cat": lambda x: torch.cat([x, x[:, :2] * 2, x[:, 1:]], 1),
    "stack": lambda x: torch.stack([x, x + 1], 1),
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((2, -1), (0, 2)),
    "pad": lambda x: F.pad(x, (1, 2, 0, 3), value=7.0),
    "crop": lambda x: F.pad(x, (-1, 1)),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "contiguous": lambda x: x.transpose(0, 1).contiguous(),
    "clone": lambda x: x.clone(),
    "zeros": lambda x: torch.zeros(3, 4, device=x.device) + x[0, 0, 0],
    "arange": lambda x: x + torch.arange(6),
    "ones_like": lambda x: torch.ones_like(x) * x,
    "eye": lambda x: torch.eye(5, 6) + x,
    "full": lambda x: torch.full((2,), 3.5) + x[0, 0, 0],
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[None], 2),
    "diag_embed": lambda x: torch.diag_embed(x[0]),
    "upsample": lambda x: F.interpolate(x[None], scale_factor=2),
    "linspace": lambda x: torch.arange(0, 1, 0.25) * x[0, 0, 0],
    "gather": lambda x: x.gather(1, (x[:, :2] * 0 + 3).long()),
    "index_select": lambda x: x.index_select(2, torch.tensor([1, 0, 5])),
    "index": lambda x: x[:, torch.tensor([[1, -1], [0, 2]])],
    "embedding": lambda x: F.embedding((x[0, :2] % 5).long(), x[0]),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_stages(name: str) -> None:
    assert_agrees(Fn(COPIES[name]), X[:4] if name != "pixel_shuffle" else X)


def test_a_returned_view_is_a_view_kernel() -> None:
    program = assert_agrees(Fn(lambda x: (x + 1).transpose(0, 1)), X, opaque=1)
    assert program.kernels[-1].spec == Opaque(("view",))
    assert lowered(program) == [True, False]


def test_permuted_results_keep_their_strides() -> None:
    program = assert_agrees(Fn(lambda x: torch.relu(x.permute(2, 0, 1))), X)
    assert not program.buffer(program.outputs[0]).contiguous
