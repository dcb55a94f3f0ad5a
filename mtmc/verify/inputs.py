"""Input sets: what a candidate is tried on, each a function of the problem's own inputs.

A set draws the problem's inputs with its own seed and then changes every floating-point tensor, in place. The reference
decides what counts: elements where it is not finite are compared by kind only, and a set on which it raises is skipped
and flagged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mtmc.problem import Problem
from mtmc.problem.tree import map_tensors, tensors
from mtmc.verify.chunks import pieces

Change = Callable[[torch.Tensor, torch.Generator], None]


class InputSet(NamedTuple):
    """How one set is made."""

    seed: int
    """Added to the judge's seed."""
    change: Change | None
    """In-place change of one floating-point tensor; None: the problem's own distribution."""
    batch: float = 1.0
    """Size of dimension 0, as a multiple of the examples' own; only for problems with a dynamic batch."""


def wide(x: torch.Tensor, generator: torch.Generator) -> None:
    """Wide dynamic range: each element times a power of two between 2^-12 and 2^12, so nothing is rounded."""
    for piece in pieces(x.shape):
        part = x[piece]
        part.mul_(torch.empty_like(part).random_(-12, 13, generator=generator).exp2_())


def signs(x: torch.Tensor, generator: torch.Generator) -> None:
    """Zeros and both signs: each element times -1, 0 or 1 (zero for one in eight)."""
    for piece in pieces(x.shape):
        part = x[piece]
        draw = torch.empty_like(part).random_(0, 16, generator=generator)
        part.mul_(torch.where(draw < 2, 0.0, torch.where(draw < 9, 1.0, -1.0)).to(part.dtype))


def rows(x: torch.Tensor, generator: torch.Generator) -> None:
    """Rows of very different size: each times a power of two between 2^-20 and 2^20."""
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    x.mul_(scale.random_(-20, 21, generator=generator).exp2_().to(x.dtype))


SETS: dict[str, InputSet] = {
    "seed0": InputSet(0, None),
    "seed1": InputSet(1, None),
    "seed2": InputSet(2, None),
    "wide": InputSet(11, wide),
    "signs": InputSet(12, signs),
    "rows": InputSet(13, rows),
    "half_batch": InputSet(21, None, 0.5),
    "double_batch": InputSet(22, None, 2.0),
}
"""Every known set. ``timed<i>`` also exists for any i: the values of the i-th copy that timing rotates through."""


def draw(problem: Problem, name: str, device: str, seed: int) -> list[Any]:
    """The inputs of one set on ``device``. Equal arguments give equal inputs, in any process."""
    chosen = InputSet(1000 + int(name[5:]), None) if name.startswith("timed") else SETS[name]
    inputs = problem.make_inputs(device, seed + chosen.seed)
    if chosen.change is not None:
        generator = torch.Generator(device=device).manual_seed(seed + chosen.seed)
        for tensor in tensors(inputs):
            if tensor.is_floating_point() and tensor.numel():
                chosen.change(tensor, generator)
    return _resized(problem, inputs, chosen.batch) if problem.batch_limit and chosen.batch != 1.0 else inputs


BATCH_SETS = ("half_batch", "double_batch")
"""Sets that a problem with a dynamic batch is tried on besides the others."""


def _resized(problem: Problem, inputs: list[Any], factor: float) -> list[Any]:
    """The inputs with another batch, within the declared limit: cut, or repeated."""
    size = next(t.shape[0] for t in tensors(inputs) if t.dim())
    wanted = min(max(1, math.ceil(size * factor)), problem.batch_limit)

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.shape[0] != size:
            return tensor
        return tensor.repeat(-(-wanted // size), *[1] * (tensor.dim() - 1))[:wanted].contiguous()

    return map_tensors(inputs, resize)
