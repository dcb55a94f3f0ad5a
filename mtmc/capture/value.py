"""Values while a graph is lowered: every tensor is a view of a buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from mtmc.errors import CaptureError
from mtmc.ir.index import ZERO, Axis, Dim, Index, IndexLike, floordiv, mod
from mtmc.ir.program import Buffer
from mtmc.ir.types import DType


def dtype_of_torch(dtype: torch.dtype) -> DType:
    """The element type; CaptureError for types that the IR lacks (complex, float8, quantised)."""
    try:
        return DType(str(dtype).removeprefix("torch."))
    except ValueError:
        raise CaptureError(
            f"tensors of {dtype} are not supported; cast them to a real type outside the module"
        ) from None


@dataclass(eq=False)
class Storage:
    """A piece of memory in the user's program. In-place operations give it a new buffer; nothing is overwritten."""

    buffer: Buffer


@dataclass(frozen=True)
class Value:
    """A tensor of the traced graph: a strided window onto a storage."""

    storage: Storage
    fake: torch.Tensor
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index
    node: Node | None = None
    """The view operation that made it; None for a whole buffer."""
    item: int | None = None
    """Which result of ``node``, where that returns several."""
    scalar: float | int | bool | None = None
    """The number itself where it is known (a 0-d constant)."""

    @property
    def dtype(self) -> DType:
        return self.storage.buffer.dtype

    @property
    def buffer(self) -> str:
        return self.storage.buffer.name

    @property
    def whole(self) -> bool:
        """True where the value is its buffer and not a view of it."""
        return self.node is None

    @cached_property
    def map(self) -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
        """The buffer's multi-index for placeholder axes, one a dimension of the view."""
        axes = tuple(Axis(f"_{d}", extent) for d, extent in enumerate(self.shape))
        position = self.offset
        for axis, stride in zip(axes, self.strides, strict=True):
            if axis.extent.constant != 1:
                position = position + Index.of(axis) * stride
        return axes, locate(position, self.storage.buffer)

    def at(self, index: tuple[Index, ...]) -> tuple[Index, ...]:
        """The buffer's multi-index of an element of this view."""
        index = tuple(ZERO if e.constant == 1 else i for i, e in zip(index, self.shape, strict=True))
        if self.whole:
            return index
        axes, where = self.map
        mapping: dict[Axis | Dim, Index] = dict(zip(axes, index, strict=True))
        return tuple(part.substitute(mapping) for part in where)


def locate(position: Index, buffer: Buffer) -> tuple[Index, ...]:
    """The multi-index of an element offset, dimension by dimension from the largest stride down."""
    sized = [d for d, extent in enumerate(buffer.shape) if extent.constant != 1 and buffer.strides[d].constant != 0]
    sized.sort(key=lambda d: buffer.strides[d].maximum(), reverse=True)
    found: dict[int, Index] = {}
    for level, d in enumerate(sized):
        stride = buffer.strides[d]
        found[d] = floordiv(position, stride)
        if level + 1 < len(sized):
            position = mod(position, stride)
    return tuple(found.get(d, ZERO) for d in range(len(buffer.shape)))


@dataclass
class Sizes:
    """Sizes of traced tensors as indices; symbols of torch's shape environment stand for declared dims."""

    dims: dict[Any, Dim] = field(default_factory=dict)

    def of(self, size: Any) -> Index:
        """The index for an int, a SymInt, or an index."""
        if isinstance(size, Index):
            return size
        if isinstance(size, int):
            return Index.of(size)
        return self._expression(size.node.expr)

    def _expression(self, expr: Any) -> Index:
        if expr in self.dims:
            return Index.of(self.dims[expr])
        if expr.is_Integer:
            return Index.of(int(expr))
        parts = [self._expression(arg) for arg in expr.args]
        name = type(expr).__name__
        total: IndexLike
        if name == "Add":
            total = ZERO
            for part in parts:
                total = part + total
        elif name == "Mul":
            total = Index.of(1)
            for part in parts:
                total = part * total
        elif name == "Pow" and expr.args[1].is_Integer:
            total = Index.of(1)
            for _ in range(int(expr.args[1])):
                total = total * parts[0]
        elif name in ("FloorDiv", "CleanDiv"):
            total = parts[0] // parts[1]
        elif name in ("Mod", "PythonMod"):
            total = parts[0] % parts[1]
        else:
            raise CaptureError(
                f"the size {expr} depends on tensor data or is not made of +, *, // and % of declared dims"
            )
        return Index.of(total)
