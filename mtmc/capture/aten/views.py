"""Operations that only move or create data: copies with index maps, concatenation, padding, gathers, tensor creation.

Real views are no operations at all (see :mod:`mtmc.capture.value`); what is here writes new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mtmc.capture.aten.site import Args, NotLowered, Piece, Site, count, dims, lowers, number, op, plain, space
from mtmc.capture.value import Value
from mtmc.ir.expr import Const, Expr, IndexValue, Load, Select, Stage
from mtmc.ir.index import ZERO, Axis, Dim, Index, delinearize, linearize, nonnegative
from mtmc.ir.program import Call, Ref
from mtmc.ir.types import DType


def moved(site: Site, value: Value, where: Callable[[tuple[Index, ...]], Sequence[Index]]) -> list[Stage]:
    """A copy whose element at ``index`` comes from ``where(index)``."""
    axes, index = space(site.shape())
    return [site.store(axes, index, site.load(value, tuple(where(index))))]


@lowers("reshape", "flatten", "_unsafe_view", "_reshape_copy", "view_copy", "unflatten")
def reshape(site: Site, a: Args) -> list[Stage]:
    shape = site.shape()
    return moved(site, a.self, lambda index: delinearize(linearize(index, shape), a.self.shape))


@lowers("flip")
def flip(site: Site, a: Args) -> list[Stage]:
    turned = dims(a.dims, len(a.self.shape))
    shape = a.self.shape
    return moved(site, a.self, lambda index: [shape[d] - 1 - i if d in turned else i for d, i in enumerate(index)])


@lowers("roll")
def roll(site: Site, a: Args) -> list[Stage]:
    shape = a.self.shape
    if not a.dims:
        if len(shape) != 1:
            raise NotLowered("roll of the flattened tensor")
    shifts = dict(zip((plain(d) % len(shape) for d in a.dims or (0,)), a.shifts, strict=True))
    return moved(
        site, a.self,
        lambda index: [(i - plain(shifts[d])) % shape[d] if d in shifts else i for d, i in enumerate(index)],
    )  # fmt: skip


@lowers("pad", "constant_pad_nd")
def pad(site: Site, a: Args) -> list[Stage]:
    if getattr(a, "mode", "constant") != "constant":
        raise NotLowered(f"padding by {a.mode}")
    rank = len(a.self.shape)
    before = {rank - 1 - j: plain(a.pad[2 * j]) for j in range(len(a.pad) // 2)}
    axes, index = space(site.shape())
    where = [i - before.get(d, 0) for d, i in enumerate(index)]
    inside = bounds(where, a.self.shape)
    value = getattr(a, "value", None) or 0.0
    return [site.store(axes, index, site.load(a.self, where, inside, float(value)))]


def bounds(index: Sequence[Index], shape: Sequence[Index]) -> tuple[Index, ...]:
    """Conditions (>= 0) under which an index lies inside a shape; only those that are not evident."""
    needed: list[Index] = []
    for i, extent in zip(index, shape, strict=True):
        needed += [bound for bound in (i, extent - 1 - i) if not nonnegative(bound)]
    return tuple(needed)


@lowers("cat", "concat", "concatenate")
def cat(site: Site, a: Args) -> list[Stage]:
    parts = [t for t in a.tensors if not (len(t.shape) == 1 and t.shape[0].constant == 0)]
    return _joined(site, parts, plain(a.dim), stacked=False)


@lowers("stack")
def stack(site: Site, a: Args) -> list[Stage]:
    return _joined(site, list(a.tensors), plain(a.dim), stacked=True)


def _joined(site: Site, parts: list[Value], dim: int, stacked: bool) -> list[Stage]:
    """One stage that selects by position: the last part is the default, each other one holds up to its end."""
    shape = site.shape()
    dim %= len(shape)
    axes, index = space(shape)
    dtype = site.dtype()
    starts = [ZERO]
    for part in parts:
        starts.append(starts[-1] + (1 if stacked else part.shape[dim]))
    body: Expr | None = None
    for part, start, end in reversed(list(zip(parts, starts, starts[1:], strict=False))):
        here = index[dim] - start
        where = [*index[:dim], *([] if stacked else [here]), *index[dim + 1 :]]
        inside = bounds([here], [end - start])
        value = site.cast(site.load(part, where, inside), dtype)
        upper = tuple(bound for bound in (end - 1 - index[dim],) if not nonnegative(bound))
        body = value if body is None or not upper else Select(upper, value, body)
    if body is None:
        raise NotLowered("nothing to concatenate")
    return [site.store(axes, index, body)]


@lowers("repeat", "tile")
def repeat(site: Site, a: Args) -> list[Stage]:
    shape = a.self.shape
    return moved(
        site, a.self, lambda index: [i % e for i, e in zip(index[len(index) - len(shape) :], shape, strict=True)]
    )


@lowers("repeat_interleave")
def repeat_interleave(site: Site, a: Args) -> list[Stage]:
    if not isinstance(getattr(a, "self", None), Value) or isinstance(a.repeats, Value) or a.dim is None:
        raise NotLowered("repeat_interleave with a tensor of counts")
    dim, times = plain(a.dim) % len(a.self.shape), a.repeats
    return moved(site, a.self, lambda index: [i // times if d == dim else i for d, i in enumerate(index)])


@lowers("pixel_shuffle")
def pixel_shuffle(site: Site, a: Args) -> list[Stage]:
    r = plain(a.upscale_factor)

    def where(index: tuple[Index, ...]) -> list[Index]:
        *batch, c, h, w = index
        return [*batch, c * (r * r) + h % r * r + w % r, h // r, w // r]

    return moved(site, a.self, where)


@lowers("pixel_unshuffle")
def pixel_unshuffle(site: Site, a: Args) -> list[Stage]:
    r = plain(a.downscale_factor)

    def where(index: tuple[Index, ...]) -> list[Index]:
        *batch, c, h, w = index
        return [*batch, c // (r * r), h * r + c // r % r, w * r + c % r]

    return moved(site, a.self, where)


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def upsample_nearest(site: Site, a: Args) -> list[Stage]:
    source = a.self if hasattr(a, "self") else a.input
    factors: dict[int, int] = {}
    for d in range(2, len(source.shape)):
        small, large = plain(source.shape[d]), plain(site.shape()[d])
        if large % small:
            raise NotLowered("upsampling by a fraction")
        factors[d] = large // small
    return moved(site, source, lambda index: [i // factors.get(d, 1) for d, i in enumerate(index)])


# ---- triangles and diagonals ---------------------------------------------------------------------------------


def _triangle(site: Site, a: Args, lower: bool) -> list[Stage]:
    axes, index = space(site.shape())
    row, column = index[-2], index[-1]
    offset = plain(a.diagonal)
    kept = row - column + offset if lower else column - row - offset
    zero = number(0, a.self.dtype.compute)
    return [site.store(axes, index, Select((kept,), site.load(a.self, index), zero))]


@lowers("tril")
def tril(site: Site, a: Args) -> list[Stage]:
    return _triangle(site, a, lower=True)


@lowers("triu")
def triu(site: Site, a: Args) -> list[Stage]:
    return _triangle(site, a, lower=False)


@lowers("diag_embed")
def diag_embed(site: Site, a: Args) -> list[Stage]:
    rank = len(site.shape())
    if a.offset != 0 or a.dim1 % rank != rank - 2 or a.dim2 % rank != rank - 1:
        raise NotLowered("diag_embed off the main diagonal")
    axes, index = space(site.shape())
    *batch, i, j = index
    return [site.store(axes, index, Select((i - j, j - i), site.load(a.self, [*batch, i]), number(0, site.dtype())))]


# ---- gathers -------------------------------------------------------------------------------------------------


def gathered(site: Site, value: Value, index: Sequence[Index | Expr]) -> Load:
    """An element at a computed position. A view's dimension can be gathered where it is one of its buffer's."""
    if value.scalar is not None:
        raise NotLowered("a gather from a number")
    kept = [ZERO if e.constant == 1 else i for i, e in zip(index, value.shape, strict=True)]
    if value.whole:
        return Load(value.buffer, tuple(kept))
    axes, where = value.map
    computed = {axis: i for axis, i in zip(axes, kept, strict=True) if not isinstance(i, Index)}
    known: dict[Axis | Dim, Index] = {axis: i for axis, i in zip(axes, kept, strict=True) if isinstance(i, Index)}
    subscripts: list[Index | Expr] = []
    for part in where:
        if part.single in computed:
            subscripts.append(computed[part.single])  # type: ignore[index]
        elif part.axes & computed.keys():
            raise NotLowered("a gather through a reshaped dimension")
        else:
            subscripts.append(part.substitute(known))
    return Load(value.buffer, tuple(subscripts))


@lowers("embedding")
def embedding(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    row = site.load(a.indices, index[:-1])
    return [site.store(axes, index, gathered(site, a.weight, (row, index[-1])))]


@lowers("index_select")
def index_select(site: Site, a: Args) -> list[Stage]:
    dim = plain(a.dim) % len(a.self.shape)
    axes, index = space(site.shape())
    row = site.load(a.index, (index[dim],))
    return [site.store(axes, index, gathered(site, a.self, [row if d == dim else i for d, i in enumerate(index)]))]


@lowers("gather")
def gather(site: Site, a: Args) -> list[Stage]:
    dim = plain(a.dim) % len(a.self.shape)
    axes, index = space(site.shape())
    row = site.load(a.index, index)
    return [site.store(axes, index, gathered(site, a.self, [row if d == dim else i for d, i in enumerate(index)]))]


@lowers("index")
def index_tensor(site: Site, a: Args) -> list[Stage]:
    chosen = [(d, t) for d, t in enumerate(a.indices) if t is not None]
    if len(chosen) != 1 or not chosen[0][1].dtype.is_integer:
        raise NotLowered("an index by several tensors or by a mask")
    dim, which = chosen[0]
    rank = len(which.shape)
    axes, index = space(site.shape())
    row = site.load(which, index[dim : dim + rank])
    if row_may_be_negative(row):
        row = op("where", op("lt", row, number(0, DType.I64)), op("add", row, count(a.self.shape[dim], DType.I64)), row)
    return [site.store(axes, index, gathered(site, a.self, [*index[:dim], row, *index[dim + rank :]]))]


def row_may_be_negative(row: Expr) -> bool:
    return not isinstance(row, Const) or row.value < 0


# ---- creation ------------------------------------------------------------------------------------------------


def _filled(value: float | None, *names: str) -> None:
    def rule(site: Site, a: Args) -> list[Piece]:
        axes, index = space(site.shape())
        fill: Any = getattr(a, "fill_value", getattr(a, "value", getattr(a, "s", None))) if value is None else value
        stage = site.store(axes, index, site.at(fill, index, site.dtype()))
        # ``*_like`` and ``new_*`` take a tensor for its shape only: the call must not depend on it
        calls = filled_calls(site, fill) if isinstance(getattr(a, "self", None), Value) else None
        return [Piece((stage,), calls)]

    lowers(*names)(rule)


def filled_calls(site: Site, fill: Any) -> tuple[Call, ...]:
    """New memory with the result's layout, filled."""
    kind = "Tensor" if isinstance(fill, Value) and fill.scalar is None else "Scalar"
    value = fill.scalar if isinstance(fill, Value) and kind == "Scalar" else fill
    return (*site.empty("_empty"), *site.call(f"aten.fill.{kind}", [Ref("_empty"), value], (site.out(),)))


_filled(0, "zeros", "zeros_like", "new_zeros", "zero")
_filled(0, "empty", "empty_like", "new_empty", "empty_strided")
_filled(1, "ones", "ones_like", "new_ones")
_filled(None, "full", "full_like", "new_full", "fill", "scalar_tensor")


@lowers("arange")
def arange(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    start, step = getattr(a, "start", 0), getattr(a, "step", 1)
    if isinstance(start, float) or isinstance(step, float):
        value = op("add", number(start, site.dtype()), op("mul", number(step, site.dtype()),
                   site.cast(IndexValue(index[0]), site.dtype())))  # fmt: skip
        return [site.store(axes, index, value)]
    return [site.store(axes, index, IndexValue(index[0] * step + start))]


@lowers("eye")
def eye(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    i, j = index
    return [site.store(axes, index, Select((i - j, j - i), number(1, site.dtype()), number(0, site.dtype())))]
