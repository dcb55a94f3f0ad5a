"""Loss functions: an elementwise part and a reduction to one number, or rows first and then one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mtmc.capture.aten.pointwise import elementwise, k
from mtmc.capture.aten.reductions import layout, norm_of
from mtmc.capture.aten.site import (
    Args,
    NotLowered,
    Piece,
    Site,
    count,
    lowers,
    number,
    op,
    points,
    reduce,
    space,
    split_space,
)
from mtmc.capture.aten.views import gathered
from mtmc.capture.value import Value
from mtmc.ir.expr import Expr, Load, Stage
from mtmc.ir.index import Index
from mtmc.ir.program import Buffer, Ref
from mtmc.ir.types import DType

NONE, MEAN, SUM = 0, 1, 2
"""ATen's numbers for ``reduction``."""


def elementwise_loss(
    site: Site, left: Value, right: Any, reduction: int, body: Callable[..., Expr], *more: Any
) -> list[Stage]:
    """``body`` of all elements, summed or averaged."""
    if reduction == NONE:
        return elementwise(site, [left, right, *more], body)
    shape = _broadcast([v.shape for v in (left, right, *more) if isinstance(v, Value)])
    axes, index = split_space(shape, range(len(shape)))
    inner = [axis for axis in axes if axis]
    dtype = site.dtype().compute
    args = [None if v is None else site.at(v, index, dtype) for v in (left, right, *more)]
    total = reduce("sum", inner, body(*args))
    return [site.store((), (), op("div", total, count(points(inner), dtype)) if reduction == MEAN else total)]


def _broadcast(shapes: list[tuple[Index, ...]]) -> tuple[Index, ...]:
    rank = max(len(shape) for shape in shapes)
    padded = [(Index.of(1),) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((e for e in extents if e.constant != 1), extents[0]) for extents in zip(*padded, strict=True))


@lowers("mse_loss")
def mse_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        return op("mul", op("sub", x, y), op("sub", x, y))

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("l1_loss")
def l1_loss(site: Site, a: Args) -> list[Stage]:
    return elementwise_loss(site, a.self, a.target, a.reduction, lambda x, y: op("abs", op("sub", x, y)))


@lowers("smooth_l1_loss")
def smooth_l1_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        z = op("abs", op("sub", x, y))
        near = op("div", op("mul", op("mul", k(0.5), z), z), k(a.beta))
        return op("where", op("lt", z, k(a.beta)), near, op("sub", z, k(0.5 * a.beta))) if a.beta else z

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("huber_loss")
def huber_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        z = op("abs", op("sub", x, y))
        near = op("mul", op("mul", k(0.5), z), z)
        return op("where", op("le", z, k(a.delta)), near, op("mul", k(a.delta), op("sub", z, k(0.5 * a.delta))))

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("kl_div")
def kl_div(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        if a.log_target:
            return op("mul", op("exp", y), op("sub", y, x))
        entropy = op("where", op("gt", y, k(0)), op("mul", y, op("log", y)), k(0))  # xlogy
        return op("sub", entropy, op("mul", y, x))

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("binary_cross_entropy")
def binary_cross_entropy(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr, w: Expr | None = None) -> Expr:
        low = k(-100.0)
        right = op("mul", op("sub", y, k(1)), op("maximum", op("log1p", op("neg", x)), low))
        value = op("sub", right, op("mul", y, op("maximum", op("log", x), low)))
        return value if w is None else op("mul", value, w)

    return elementwise_loss(site, a.self, a.target, a.reduction, body, *([] if a.weight is None else [a.weight]))


@lowers("binary_cross_entropy_with_logits")
def bce_with_logits(site: Site, a: Args) -> list[Stage]:
    if a.pos_weight is not None:
        raise NotLowered("weights of the positive class")

    def body(x: Expr, y: Expr, w: Expr | None = None) -> Expr:
        log_sigmoid = op("sub", op("minimum", x, k(0)), op("log1p", op("exp", op("neg", op("abs", x)))))
        value = op("sub", op("mul", op("sub", k(1), y), x), log_sigmoid)
        return value if w is None else op("mul", value, w)

    return elementwise_loss(site, a.self, a.target, a.reduction, body, *([] if a.weight is None else [a.weight]))


@lowers("soft_margin_loss")
def soft_margin_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        return op("log1p", op("exp", op("mul", op("neg", y), x)))

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("hinge_embedding_loss")
def hinge_embedding_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr) -> Expr:
        margin = op("where", op("ne", y, k(1)), op("maximum", op("sub", k(a.margin), x), k(0)), k(0))
        return op("add", margin, op("where", op("ne", y, k(-1)), x, k(0)))

    return elementwise_loss(site, a.self, a.target, a.reduction, body)


@lowers("margin_ranking_loss")
def margin_ranking_loss(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr, t: Expr) -> Expr:
        gap = op("mul", op("neg", t), op("sub", x, y))
        return op("maximum", op("add", gap, k(a.margin)) if a.margin else gap, k(0))

    return elementwise_loss(site, a.input1, a.input2, a.reduction, body, a.target)


# ---- rows first ----------------------------------------------------------------------------------------------


def whole(site: Site, rows: Buffer, reduction: int) -> Piece:
    """The sum or mean of what the first piece left."""
    axes, index = split_space(rows.shape, range(len(rows.shape)))
    inner = [axis for axis in axes if axis]
    total = reduce("sum", inner, Load(rows.name, index))
    value = op("div", total, count(points(inner), rows.dtype.compute)) if reduction == MEAN else total
    name = "mean" if reduction == MEAN else "sum"
    calls = site.call(f"aten.{name}.default", [Ref(rows.name)], (site.out(),))
    return Piece((site.store((), (), value),), tuple(calls), name)


def _weighted_mean(site: Site, rows: Buffer, target: Value, ignore: int) -> Piece:
    """The mean over targets that are not ignored."""
    axes, index = split_space(rows.shape, range(len(rows.shape)))
    inner = [axis for axis in axes if axis]
    valid = op("where", _valid(site, target, index, ignore), k(1), k(0))
    value = op("div", reduce("sum", inner, Load(rows.name, index)), reduce("sum", inner, valid))
    calls = [
        *site.call("aten.sum.default", [Ref(rows.name)], ("_total",)),
        *site.call("aten.ne.Scalar", [target, ignore], ("_valid",)),
        *site.call("aten.sum.default", [Ref("_valid")], ("_count",)),
        *site.call("aten.div.Tensor", [Ref("_total"), Ref("_count")], (site.out(),)),
    ]
    return Piece((site.store((), (), value),), tuple(calls), "mean")


def _valid(site: Site, target: Value, index: tuple[Index, ...], ignore: int) -> Expr:
    return op("ne", site.load(target, index), number(ignore, DType.I64))


def _picked(site: Site, x: Value, target: Value, index: tuple[Index, ...], ignore: int) -> tuple[Expr, Expr]:
    """Whether a row counts, and its element at the target class."""
    valid = _valid(site, target, index, ignore)
    row = op("where", valid, site.load(target, index), number(0, DType.I64))
    if len(x.shape) == 1:
        return valid, gathered(site, x, (row,))
    return valid, gathered(site, x, (index[0], row, *index[1:]))


@lowers("cross_entropy_loss")
def cross_entropy(site: Site, a: Args) -> list[Piece]:
    x, target = a.self, a.target
    if a.weight is not None or a.label_smoothing or target.dtype is not DType.I64:
        raise NotLowered("class weights, label smoothing or class probabilities")
    dim = 0 if len(x.shape) == 1 else 1
    kept, inner, index = layout(x, (dim,))
    where = tuple(i for d, i in enumerate(index) if d != dim)
    element = site.load(x, index)
    first, top = site.keep(kept, reduce("maxsumexp", inner, element, 0))
    second, total = site.keep(kept, reduce("maxsumexp", inner, element, 1))
    valid, picked = _picked(site, x, target, where, a.ignore_index)
    loss = op("where", valid, op("sub", op("add", top, op("log", total)), picked), k(0))
    return _rows(site, a, kept, where, loss, (first, second), "cross_entropy_loss")


@lowers("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(site: Site, a: Args) -> list[Piece]:
    x, target = a.self, a.target
    if a.weight is not None:
        raise NotLowered("class weights")
    axes, index = space(target.shape)
    valid, picked = _picked(site, x, target, index, a.ignore_index)
    loss = op("where", valid, op("neg", picked), k(0))
    return _rows(site, a, list(axes), index, loss, (), "nll_loss_nd")


def _rows(
    site: Site, a: Args, kept: list[Any], where: tuple[Index, ...], loss: Expr, before: tuple[Stage, ...], name: str
) -> list[Piece]:
    """One loss a row, then (unless reduction is ``none``) one number."""
    if a.reduction == NONE:
        return [Piece((*before, site.store(kept, where, loss)), locals=tuple(site.locals))]
    rows = site.temp(site.dtype(), a.target.shape)
    smoothing = (0.0,) if name == "cross_entropy_loss" else ()
    arguments = [a.self, a.target, None, NONE, a.ignore_index, *smoothing]
    calls = site.call(f"aten.{name}.default", arguments, (rows.name,))
    stage = site.stage(rows.name, tuple(kept), where, loss)
    last = _weighted_mean(site, rows, a.target, a.ignore_index) if a.reduction == MEAN else whole(site, rows, SUM)
    return [Piece((*before, stage), tuple(calls), None, tuple(site.locals)), last]


@lowers("triplet_margin_loss")
def triplet_margin_loss(site: Site, a: Args) -> list[Piece]:
    if a.swap or not len(a.anchor.shape) == len(a.positive.shape) == len(a.negative.shape):
        raise NotLowered("a triplet loss with a swap or with broadcast inputs")
    rank = len(a.anchor.shape)
    axes, index = split_space(a.anchor.shape, (rank - 1,))
    kept, inner = [x for x in axes[:-1] if x], [x for x in axes[-1:] if x]
    dtype = site.dtype()

    def distance(other: Value) -> tuple[Stage, Load]:
        gap = op("add", op("sub", site.at(a.anchor, index), site.at(other, index)), k(a.eps))
        return site.keep(kept, norm_of(gap, inner, float(a.p), dtype.compute))

    first, near = distance(a.positive)
    second, far = distance(a.negative)
    loss = op("maximum", op("sub", op("add", k(a.margin), near), far), k(0))
    where = index[:-1]
    if a.reduction == NONE:
        return [Piece((first, second, site.store(kept, where, loss)), locals=tuple(site.locals))]
    rows = site.temp(dtype, a.anchor.shape[:-1])
    arguments = [a.anchor, a.positive, a.negative, a.margin, a.p, a.eps, a.swap, NONE]
    calls = site.call("aten.triplet_margin_loss.default", arguments, (rows.name,))
    stage = site.stage(rows.name, tuple(kept), where, loss)
    return [Piece((first, second, stage), tuple(calls), None, tuple(site.locals)), whole(site, rows, a.reduction)]


@lowers("pairwise_distance")
def pairwise_distance(site: Site, a: Args) -> list[Stage]:
    shape = _broadcast([a.x1.shape, a.x2.shape])
    axes, index = split_space(shape, (len(shape) - 1,))
    gap = op("add", op("sub", site.at(a.x1, index), site.at(a.x2, index)), k(a.eps))
    kept, inner = [x for x in axes[:-1] if x], [x for x in axes[-1:] if x]
    where = (*index[:-1], Index()) if a.keepdim else index[:-1]
    return [site.store(kept, where, norm_of(gap, inner, float(a.p), site.dtype().compute))]
