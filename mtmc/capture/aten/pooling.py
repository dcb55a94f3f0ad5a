"""Pooling as a reduction over window axes; padding is a predicate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mtmc.capture.aten.site import Args, NotLowered, Site, count, lowers, op, plain, points, reduce, space
from mtmc.capture.aten.views import bounds
from mtmc.capture.value import Value
from mtmc.ir.expr import Const, Expr, Reduce, Stage
from mtmc.ir.index import ZERO, Axis, Index
from mtmc.ir.types import DType


def per_dim(value: Any, rank: int, default: int | Sequence[int] | None = None) -> list[int]:
    """An integer or a list as one integer a spatial dimension; empty takes the default."""
    if value is None or value == ():
        value = default
    listed = list(value) if isinstance(value, tuple | list) else [value]
    return [plain(v) for v in (listed * rank if len(listed) == 1 else listed)]


class Window:
    """A sliding window over the last ``rank`` dimensions: its axes ``r0, r1, ..`` and where it reads."""

    def __init__(
        self, index: Sequence[Index], shape: Sequence[Index], kernel: list[int], stride: list[int], padding: list[int],
        dilation: list[int],
    ) -> None:  # fmt: skip
        rank = len(kernel)
        extents = shape[len(shape) - rank :]
        self.axes = tuple(Axis(f"r{d}", Index.of(size)) for d, size in enumerate(kernel) if size > 1)
        by_name = {axis.name: Index.of(axis) for axis in self.axes}
        steps = [by_name.get(f"r{d}", ZERO) for d in range(rank)]
        out = index[len(index) - rank :]
        self.taps = tuple(steps)
        self.where = tuple(
            o * s + step * dil - p for o, s, step, dil, p in zip(out, stride, steps, dilation, padding, strict=True)
        )
        self.inside = bounds(self.where, extents)
        self.size = math.prod(kernel)


def _load(site: Site, value: Value, lead: Sequence[Index], window: Window, other: float) -> Expr:
    return site.load(value, (*lead, *window.where), window.inside, other)


def _max_pool(site: Site, a: Args, rank: int) -> list[Stage]:
    if any(site.used[1:]):
        raise NotLowered("max pooling with positions")
    kernel = per_dim(a.kernel_size, rank)
    axes, index = space(site.shape())
    window = Window(
        index, a.self.shape, kernel, per_dim(getattr(a, "stride", ()), rank, kernel), per_dim(a.padding, rank, 0),
        per_dim(a.dilation, rank, 1),
    )  # fmt: skip
    element = _load(site, a.self, index[: len(index) - rank], window, -math.inf)
    return [site.store(axes, index, reduce("max", window.axes, element))]


def _avg_pool(site: Site, a: Args, rank: int) -> list[Stage]:
    kernel = per_dim(a.kernel_size, rank)
    padding = per_dim(a.padding, rank, 0)
    stride = per_dim(a.stride, rank, kernel)
    axes, index = space(site.shape())
    window = Window(index, a.self.shape, kernel, stride, padding, [1] * rank)
    dtype = site.dtype().compute
    total = reduce("sum", window.axes, _load(site, a.self, index[: len(index) - rank], window, 0.0))
    if a.ceil_mode and window.inside:
        raise NotLowered("average pooling with windows over the edge")
    divisor: Expr
    if getattr(a, "divisor_override", None):
        divisor = count(Index.of(plain(a.divisor_override)), dtype)
    elif a.count_include_pad or not window.inside:
        divisor = count(Index.of(window.size), dtype)
    else:
        divisor = Reduce("sum", window.axes, (Const(1.0, dtype),), 0, window.inside)
    return [site.store(axes, index, op("div", total, divisor))]


def _adaptive(site: Site, a: Args, rank: int, monoid: str) -> list[Stage]:
    """Only where every window has the same size."""
    if any(site.used[1:]):
        raise NotLowered("adaptive pooling with positions")
    shape = site.shape()
    lead = len(shape) - rank
    axes, index = space(shape)
    inner: list[Axis] = []
    where: list[Index] = list(index[:lead])
    for d in range(rank):
        small, large = plain(shape[lead + d]), plain(a.self.shape[lead + d])
        if large % small:
            raise NotLowered("adaptive pooling with windows of different sizes")
        step = large // small
        tap = ZERO
        if step > 1:
            inner.append(Axis(f"r{d}", Index.of(step)))
            tap = Index.of(inner[-1])
        where.append(index[lead + d] * step + tap)
    value = reduce(monoid, inner, site.load(a.self, where))
    if monoid == "sum" and inner:
        value = op("div", value, count(points(inner), DType.F32))
    return [site.store(axes, index, value)]


def _register(rank: int) -> None:
    def max_pool(site: Site, a: Args) -> list[Stage]:
        return _max_pool(site, a, rank)

    def avg_pool(site: Site, a: Args) -> list[Stage]:
        return _avg_pool(site, a, rank)

    def adaptive_avg_pool(site: Site, a: Args) -> list[Stage]:
        return _adaptive(site, a, rank, "sum")

    def adaptive_max_pool(site: Site, a: Args) -> list[Stage]:
        return _adaptive(site, a, rank, "max")

    lowers(f"max_pool{rank}d", f"max_pool{rank}d_with_indices")(max_pool)
    lowers(f"avg_pool{rank}d")(avg_pool)
    lowers(f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d")(adaptive_avg_pool)
    lowers(f"adaptive_max_pool{rank}d")(adaptive_max_pool)


for _rank in (1, 2, 3):
    _register(_rank)
