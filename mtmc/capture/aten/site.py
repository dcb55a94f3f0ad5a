"""One ATen operation while it is lowered: its arguments, its results, and helpers to write stages.

A rule is a function ``rule(site, args)`` that returns the operation's stages, or several :class:`Piece` where one
operation needs more than one kernel. What it can't express it refuses with :class:`NotLowered`; then the operation
stays a library call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import elementwise_dtypes

from mtmc.capture.value import Value, dtype_of_torch
from mtmc.ir.expr import Cast, Const, Expr, IndexValue, Load, Op, Reduce, Stage, dtype_of
from mtmc.ir.index import ONE, ZERO, Axis, Index, product
from mtmc.ir.program import Buffer, Call
from mtmc.ir.types import DType


class NotLowered(Exception):
    """The operation has no stages here; it stays with the library. Never leaves this layer."""


class MissingArgument(NotLowered, AttributeError):
    """This overload of the operation lacks an argument that its rule needs."""


class Args(SimpleNamespace):
    """Arguments by schema name, defaults filled in: Value, Index, numbers, tuples, None."""

    def __getattr__(self, name: str) -> Any:
        raise MissingArgument(name)


@dataclass(frozen=True)
class Piece:
    """One kernel of a lowered operation. ``calls`` None: the traced call itself."""

    stages: tuple[Stage, ...]
    calls: tuple[Call, ...] | None = None
    op: str | None = None
    locals: tuple[str, ...] = ()


Rule: TypeAlias = Callable[["Site", Args], "list[Stage] | list[Piece]"]
RULES: dict[str, Rule] = {}
"""By base name, without overload and without the underscore of in-place variants."""


def lowers(*names: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ATen operations."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = rule
        return rule

    return register


class Host(Protocol):
    """What a site needs of the lowering it belongs to."""

    buffers: dict[str, Buffer]

    def buffer_dtype(self, name: str) -> DType: ...

    def new_temp(self, dtype: DType, shape: tuple[Index, ...], strides: tuple[Index, ...] | None = None) -> Buffer: ...

    def size(self, size: Any) -> Index: ...

    def call(self, target: str, args: Sequence[Any], kwargs: Any, results: tuple[str | None, ...]) -> list[Call]: ...


@dataclass
class Site:
    host: Host
    fakes: tuple[torch.Tensor, ...]
    """Results as traced."""
    used: tuple[bool, ...]
    """Which results anybody reads."""
    locals: list[str] = field(default_factory=list)
    outs: dict[int, Buffer] = field(default_factory=dict)

    # -- results ------------------------------------------------------------------------------------------
    def shape(self, i: int = 0) -> tuple[Index, ...]:
        return tuple(self.host.size(s) for s in self.fakes[i].shape)

    def dtype(self, i: int = 0) -> DType:
        return dtype_of_torch(self.fakes[i].dtype)

    def out(self, i: int = 0) -> str:
        """The buffer of result ``i``, made when first asked for."""
        if i not in self.outs:
            strides = tuple(self.host.size(s) for s in self.fakes[i].stride())
            self.outs[i] = self.host.new_temp(self.dtype(i), self.shape(i), strides)
        return self.outs[i].name

    def store(self, axes: Iterable[Axis], index: tuple[Index, ...], body: Expr, i: int = 0) -> Stage:
        """The stage that writes result ``i``; the body is converted where its kind differs from the result's."""
        return self.stage(self.out(i), tuple(axes), index, body)

    def stage(self, target: str, axes: tuple[Axis, ...], index: tuple[Index, ...], body: Expr) -> Stage:
        dtype = self.host.buffer_dtype(target)
        if dtype_of(body, self.host.buffer_dtype) is not dtype.compute:
            body = Cast(dtype, body)
        return Stage(axes, target, index, body)

    def keep(self, axes: Sequence[Axis], body: Expr) -> tuple[Stage, Load]:
        """A local value for each point of ``axes``: the stage that computes it and the load that reads it."""
        dtype = dtype_of(body, self.host.buffer_dtype)
        buffer = self.host.new_temp(dtype, tuple(axis.extent for axis in axes))
        self.locals.append(buffer.name)
        index = tuple(Index.of(axis) for axis in axes)
        return Stage(tuple(axes), buffer.name, index, body), Load(buffer.name, index)

    def temp(self, dtype: DType, shape: tuple[Index, ...]) -> Buffer:
        """A buffer between two pieces of one operation."""
        return self.host.new_temp(dtype, shape)

    def call(self, target: str, args: Sequence[Any], results: tuple[str | None, ...], kwargs: Any = None) -> list[Call]:
        """A library call of a piece; Values become the view calls that they need and a reference."""
        return self.host.call(target, args, kwargs or {}, results)

    def empty(self, name: str) -> list[Call]:
        """Calls that allocate memory with the layout of the first result."""
        buffer = self.host.buffers[self.out()]
        kwargs = {"dtype": self.fakes[0].dtype, "device": self.fakes[0].device}
        return self.call("aten.empty_strided.default", [buffer.shape, buffer.strides], (name,), kwargs)

    # -- arguments ----------------------------------------------------------------------------------------
    def load(self, value: Value, index: Sequence[Index], when: tuple[Index, ...] = (), other: float = 0.0) -> Expr:
        """An element of a tensor at an index with one entry a dimension."""
        if value.scalar is not None:
            return Const(value.scalar, value.dtype)
        return Load(value.buffer, value.at(tuple(index)), when, other)

    def at(self, value: Any, index: Sequence[Index], dtype: DType | None = None) -> Expr:
        """A tensor broadcast against ``index``, or a number, converted to ``dtype``."""
        if isinstance(value, Value):
            own = index[len(index) - len(value.shape) :]
            expr = self.load(value, [ZERO if e == ONE else i for i, e in zip(own, value.shape, strict=True)])
            return self.cast(expr, dtype)
        if isinstance(value, Index):
            if value.constant is None:
                return self.cast(IndexValue(value), dtype)
            value = value.constant
        if isinstance(value, bool | int | float):
            return number(value, dtype)
        raise NotLowered(f"an argument of type {type(value).__name__}")

    def cast(self, expr: Expr, dtype: DType | None) -> Expr:
        if dtype is None or dtype_of(expr, self.host.buffer_dtype) is dtype.compute:
            return expr
        return number(expr.value, dtype) if isinstance(expr, Const) else Cast(dtype, expr)

    def common(self, values: Iterable[Any], kind: Promotion = Promotion.DEFAULT) -> DType:
        """The type that an elementwise operation computes in, by torch's promotion rules."""
        plain = [v.fake if isinstance(v, Value) else 1 if isinstance(v, Index) else v for v in values]
        if any(isinstance(v, complex) for v in plain):
            raise NotLowered("complex numbers")
        return dtype_of_torch(elementwise_dtypes(*plain, type_promotion_kind=kind)[0])


# ---- numbers and axes ----------------------------------------------------------------------------------------


def number(value: float | int | bool, dtype: DType | None) -> Const:
    """A constant of a given type."""
    if dtype is None:
        dtype = DType.BOOL if isinstance(value, bool) else DType.F32 if isinstance(value, float) else DType.I64
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    return Const(float(value) if dtype.is_float else int(value), dtype)


def space(shape: Iterable[Index], prefix: str = "i") -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
    """One axis for each dimension larger than 1, and the multi-index over them."""
    axes, index = split_space(shape, (), prefix)
    return tuple(axis for axis in axes if axis), index


def split_space(
    shape: Iterable[Index], reduced: Iterable[int], prefix: str = "i"
) -> tuple[tuple[Axis | None, ...], tuple[Index, ...]]:
    """An axis for each dimension (None for extent 1): ``r0, r1, ..`` for reduced ones, ``i0, i1, ..`` for others."""
    taken = set(reduced)
    counts = {prefix: 0, "r": 0}
    axes: list[Axis | None] = []
    for d, extent in enumerate(shape):
        name = "r" if d in taken else prefix
        axes.append(None if extent == ONE else Axis(f"{name}{counts[name]}", extent))
        counts[name] += extent != ONE
    return tuple(axes), tuple(Index.of(axis) if axis else ZERO for axis in axes)


def points(axes: Iterable[Axis]) -> Index:
    return product(axis.extent for axis in axes)


def count(extent: Index, dtype: DType) -> Expr:
    """A number of points as a value."""
    if extent.constant is not None:
        return number(extent.constant, dtype)
    return Cast(dtype, IndexValue(extent))


_TRIVIAL = {"moments": (None, 0.0, 1.0), "maxsumexp": (None, 1.0), "argmax": (None, 0), "argmin": (None, 0)}


def reduce(monoid: str, axes: Sequence[Axis], arg: Expr, part: int = 0, dtype: DType = DType.F32) -> Expr:
    """A reduction; over no axes it is the element itself, with the monoid's lifted value for the other parts."""
    if axes:
        return Reduce(monoid, tuple(axes), (arg,), part)
    if part == 0:
        return arg
    value = _TRIVIAL[monoid][part]
    assert value is not None
    return number(value, DType.I64 if monoid.startswith("arg") else dtype)


def op(name: str, *args: Expr) -> Op:
    return Op(name, args)


def dims(dim: Any, rank: int) -> tuple[int, ...]:
    """Dimensions as non-negative numbers, ascending; None or () is all of them."""
    if dim is None or dim == ():
        return tuple(range(rank))
    listed = dim if isinstance(dim, tuple) else (dim,)
    return tuple(sorted(plain(d) % max(rank, 1) for d in listed))[: rank or 0]


def plain(value: Any) -> int:
    """An integer argument that has to be known."""
    if isinstance(value, Index):
        if value.constant is None:
            raise NotLowered(f"the argument {value} is not a constant")
        return value.constant
    if not isinstance(value, int):
        raise NotLowered(f"{value!r} where an integer is needed")
    return value
