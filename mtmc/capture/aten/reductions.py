"""Reductions along dimensions, softmax and vector norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mtmc.capture.aten.pointwise import elementwise, k
from mtmc.capture.aten.site import (
    Args,
    NotLowered,
    Site,
    count,
    dims,
    lowers,
    number,
    op,
    plain,
    points,
    reduce,
    split_space,
)
from mtmc.capture.value import Value
from mtmc.ir.expr import Expr, Stage
from mtmc.ir.index import ZERO, Axis, Index
from mtmc.ir.types import DType


def layout(value: Value, reduced: tuple[int, ...]) -> tuple[list[Axis], list[Axis], tuple[Index, ...]]:
    """Kept axes, reduced axes and the multi-index over both."""
    axes, index = split_space(value.shape, reduced)
    kept = [axis for d, axis in enumerate(axes) if axis and d not in reduced]
    inner = [axis for d, axis in enumerate(axes) if axis and d in reduced]
    return kept, inner, index


def kept_index(index: tuple[Index, ...], reduced: tuple[int, ...], keepdim: bool) -> tuple[Index, ...]:
    """Where the result of a reduction is stored."""
    return tuple(ZERO if d in reduced else i for d, i in enumerate(index) if keepdim or d not in reduced)


def reduction(
    site: Site,
    a: Args,
    body: Callable[[Expr, list[Axis]], Expr],
    dim: Any = None,
    convert: DType | None = None,
    result: int = 0,
) -> list[Stage]:
    """One stage: ``body(element, reduced axes)`` for each kept point."""
    reduced = dims(dim, len(a.self.shape))
    kept, inner, index = layout(a.self, reduced)
    element = site.cast(site.load(a.self, index), convert)
    where = kept_index(index, reduced, bool(getattr(a, "keepdim", False)))
    return [site.store(kept, where, body(element, inner), result)]


def _dim(a: Args) -> Any:
    return getattr(a, "dim", None)


@lowers("sum")
def sum_(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("sum", r, x), _dim(a), site.dtype().compute)


@lowers("prod")
def prod(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("prod", r, x), _dim(a), site.dtype().compute)


@lowers("mean")
def mean(site: Site, a: Args) -> list[Stage]:
    dtype = site.dtype().compute
    return reduction(site, a, lambda x, r: op("div", reduce("sum", r, x), count(points(r), dtype)), _dim(a), dtype)


@lowers("amax")
def amax(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("max", r, x), a.dim)


@lowers("amin")
def amin(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("min", r, x), a.dim)


def _extreme(site: Site, a: Args, name: str) -> list[Stage]:
    """``max`` and ``min``: of two tensors, of everything, or along a dimension with positions."""
    if hasattr(a, "other"):
        return elementwise(site, [a.self, a.other], lambda x, y: op(f"{name}imum", x, y))
    if not hasattr(a, "dim"):
        return reduction(site, a, lambda x, r: reduce(name, r, x))
    if not isinstance(a.dim, int | Index):
        raise NotLowered("named dimensions")
    if not site.used[1]:
        return reduction(site, a, lambda x, r: reduce(name, r, x), a.dim)
    both: list[Stage] = []
    for part in (0, 1):
        if site.used[part]:
            both += reduction(site, a, _component(f"arg{name}", part), a.dim, None, part)
    return both


def _component(monoid: str, part: int) -> Callable[[Expr, list[Axis]], Expr]:
    return lambda x, r: reduce(monoid, r, x, part)


@lowers("max")
def max_(site: Site, a: Args) -> list[Stage]:
    return _extreme(site, a, "max")


@lowers("min")
def min_(site: Site, a: Args) -> list[Stage]:
    return _extreme(site, a, "min")


@lowers("aminmax")
def aminmax(site: Site, a: Args) -> list[Stage]:
    stages: list[Stage] = []
    for part, name in enumerate(("min", "max")):
        if site.used[part]:
            stages += reduction(site, a, _component(name, 0), a.dim, None, part)
    return stages


@lowers("argmax")
def argmax(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("argmax", r, x, 1), a.dim)


@lowers("argmin")
def argmin(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("argmin", r, x, 1), a.dim)


@lowers("any")
def any_(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: reduce("any", r, x), _dim(a), DType.BOOL)


@lowers("all")
def all_(site: Site, a: Args) -> list[Stage]:
    return reduction(
        site, a, lambda x, r: op("logical_not", reduce("any", r, op("logical_not", x))), _dim(a), DType.BOOL
    )


# ---- variance ------------------------------------------------------------------------------------------------


def variance(x: Expr, inner: list[Axis], correction: float, dtype: DType) -> Expr:
    """m2 / max(0, n - correction)."""
    size = points(inner)
    if size.constant is not None:
        divisor: Expr = number(max(0.0, size.constant - correction), dtype)
    else:
        divisor = op("maximum", op("sub", count(size, dtype), number(correction, dtype)), number(0, dtype))
    return op("div", reduce("moments", inner, x, 1), divisor)


def _correction(a: Args) -> float:
    if hasattr(a, "correction"):
        return 1.0 if a.correction is None else float(a.correction)
    return 1.0 if getattr(a, "unbiased", True) else 0.0


@lowers("var")
def var(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: variance(x, r, _correction(a), site.dtype()), _dim(a))


@lowers("std")
def std(site: Site, a: Args) -> list[Stage]:
    return reduction(site, a, lambda x, r: op("sqrt", variance(x, r, _correction(a), site.dtype())), _dim(a))


def _with_mean(site: Site, a: Args, finish: Callable[[Expr], Expr]) -> list[Stage]:
    stages: list[Stage] = []
    if site.used[0]:
        stages += reduction(site, a, lambda x, r: finish(variance(x, r, _correction(a), site.dtype())), _dim(a))
    if site.used[1]:
        stages += reduction(site, a, lambda x, r: reduce("moments", r, x, 0), _dim(a), None, 1)
    return stages


@lowers("var_mean")
def var_mean(site: Site, a: Args) -> list[Stage]:
    return _with_mean(site, a, lambda v: v)


@lowers("std_mean")
def std_mean(site: Site, a: Args) -> list[Stage]:
    return _with_mean(site, a, lambda v: op("sqrt", v))


# ---- softmax -------------------------------------------------------------------------------------------------


def _exponentials(
    site: Site, value: Value, dim: Any
) -> tuple[list[Stage], list[Axis], tuple[Index, ...], Expr, Expr, Expr]:
    """Stages for the row's maximum and sum of exponentials; all axes, the index, the element and both values."""
    reduced = dims(dim, len(value.shape))
    kept, inner, index = layout(value, reduced)
    x = site.cast(site.load(value, index), site.dtype())
    first, top = site.keep(kept, reduce("maxsumexp", inner, x, 0))
    second, total = site.keep(kept, reduce("maxsumexp", inner, x, 1))
    axes = [axis for axis in split_space(value.shape, reduced)[0] if axis]
    return [first, second], axes, index, x, top, total


@lowers("softmax", "_softmax", "special_softmax")
def softmax(site: Site, a: Args) -> list[Stage]:
    stages, axes, index, x, top, total = _exponentials(site, a.self, a.dim)
    return [*stages, site.store(axes, index, op("div", op("exp", op("sub", x, top)), total))]


@lowers("log_softmax", "_log_softmax", "special_log_softmax")
def log_softmax(site: Site, a: Args) -> list[Stage]:
    stages, axes, index, x, top, total = _exponentials(site, a.self, a.dim)
    return [*stages, site.store(axes, index, op("sub", op("sub", x, top), op("log", total)))]


@lowers("logsumexp", "special_logsumexp")
def logsumexp(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, inner: list[Axis]) -> Expr:
        top = reduce("maxsumexp", inner, x, 0)
        finite = op("add", top, op("log", reduce("maxsumexp", inner, x, 1)))
        return op("where", op("eq", op("abs", top), k(math.inf)), top, finite)

    return reduction(site, a, body, a.dim, site.dtype())


# ---- vector norms --------------------------------------------------------------------------------------------


@lowers("linalg_vector_norm", "norm", "frobenius_norm")
def vector_norm(site: Site, a: Args) -> list[Stage]:
    order = getattr(a, "ord", getattr(a, "p", 2))
    order = 2.0 if order is None else float(order)
    dtype = site.dtype()
    return reduction(site, a, lambda x, r: norm_of(x, r, order, dtype), _dim(a), dtype)


def norm_of(x: Expr, inner: list[Axis], order: float, dtype: DType) -> Expr:
    """The ``order``-norm of elements along axes."""
    size = op("abs", x)
    match order:
        case 2.0:
            return op("sqrt", reduce("sum", inner, op("mul", x, x)))
        case 1.0:
            return reduce("sum", inner, size)
        case math.inf:
            return reduce("max", inner, size)
        case 0.0:
            return reduce("sum", inner, op("where", op("ne", x, k(0)), number(1, dtype), number(0, dtype)))
    if order == -math.inf:
        return reduce("min", inner, size)
    return op("pow", reduce("sum", inner, op("pow", size, k(order))), k(1 / order))


@lowers("cosine_similarity")
def cosine_similarity(site: Site, a: Args) -> list[Stage]:
    shape = [x if y.constant == 1 else y for x, y in zip(*_same_rank(a.x1.shape, a.x2.shape), strict=True)]
    dim = plain(a.dim) % len(shape)
    axes, index = split_space(shape, (dim,))
    kept = [axis for d, axis in enumerate(axes) if axis and d != dim]
    inner = [axis for d, axis in enumerate(axes) if axis and d == dim]
    x, y = site.at(a.x1, index, site.dtype()), site.at(a.x2, index, site.dtype())

    def length(v: Expr) -> Expr:
        return op("maximum", norm_of(v, inner, 2.0, site.dtype()), k(a.eps))

    body = op("div", reduce("sum", inner, op("mul", x, y)), op("mul", length(x), length(y)))
    return [site.store(kept, kept_index(index, (dim,), False), body)]


def _same_rank(left: tuple[Index, ...], right: tuple[Index, ...]) -> tuple[list[Index], list[Index]]:
    rank = max(len(left), len(right))
    one = [Index.of(1)]
    return one * (rank - len(left)) + list(left), one * (rank - len(right)) + list(right)
