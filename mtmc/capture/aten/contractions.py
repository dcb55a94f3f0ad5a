"""Matrix products and einsum as contractions; bias and scaling are part of the same stage."""

from __future__ import annotations

from collections.abc import Sequence

from mtmc.capture.aten.pointwise import scaled
from mtmc.capture.aten.site import Args, NotLowered, Site, lowers, op, space
from mtmc.capture.value import Value
from mtmc.ir.expr import Contract, Expr, Stage
from mtmc.ir.index import ONE, ZERO, Axis, Index
from mtmc.ir.types import DType


def contract(axes: Sequence[Axis], a: Expr, b: Expr) -> Expr:
    """The contraction; over no axes it is the product itself."""
    return Contract(tuple(axes), ((a, b),)) if axes else op("mul", a, b)


def _depth(extent: Index) -> tuple[list[Axis], Index]:
    """The summed axis ``k`` and its index."""
    if extent == ONE:
        return [], ZERO
    axis = Axis("k", extent)
    return [axis], Index.of(axis)


def product(site: Site, x: Value, y: Value) -> tuple[tuple[Axis, ...], tuple[Index, ...], Expr]:
    """``x @ y`` by torch.matmul's rules; axes and index of the result's shape, and the contraction."""
    if not site.dtype().is_float:
        raise NotLowered("an integer matrix product")
    k_axes, k = _depth(x.shape[-1])
    shape = site.shape()
    axes, index = space(shape)
    batch_rank = len(shape) - (len(x.shape) > 1) - (len(y.shape) > 1)
    batch, rest = index[:batch_rank], list(index[batch_rank:])
    left: tuple[Index, ...] = (k,)
    if len(x.shape) > 1:
        left = (*_broadcast(batch, x.shape[:-2]), rest.pop(0), k)
    right: tuple[Index, ...] = (k,)
    if len(y.shape) > 1:
        right = (*_broadcast(batch, y.shape[:-2]), k, rest.pop(0))
    return axes, index, contract(k_axes, site.load(x, left), site.load(y, right))


def _broadcast(index: tuple[Index, ...], shape: tuple[Index, ...]) -> tuple[Index, ...]:
    own = index[len(index) - len(shape) :]
    return tuple(ZERO if e == ONE else i for i, e in zip(own, shape, strict=True))


@lowers("matmul", "linalg_matmul", "mm", "bmm", "mv", "dot", "vdot")
def matmul(site: Site, a: Args) -> list[Stage]:
    right = next(getattr(a, name) for name in ("other", "mat2", "vec", "tensor") if hasattr(a, name))
    axes, index, body = product(site, a.self, right)
    return [site.store(axes, index, body)]


@lowers("linear")
def linear(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    k_axes, k = _depth(a.input.shape[-1])
    vector = len(a.weight.shape) == 1
    lead = index if vector else index[:-1]
    weight = site.load(a.weight, (k,) if vector else (index[-1], k))
    body = contract(k_axes, site.load(a.input, (*lead, k)), weight)
    if a.bias is not None:
        body = op("add", body, site.at(a.bias, index))
    return [site.store(axes, index, body)]


def _added(site: Site, a: Args, left: Value, right: Value) -> list[Stage]:
    """``beta * self + alpha * left @ right``."""
    axes, index, body = product(site, left, right)
    body = scaled(a.alpha, body, DType.F32)
    if a.beta != 0:
        body = op("add", body, scaled(a.beta, site.at(a.self, index), DType.F32))
    return [site.store(axes, index, body)]


@lowers("addmm")
def addmm(site: Site, a: Args) -> list[Stage]:
    return _added(site, a, a.mat1, a.mat2)


@lowers("baddbmm")
def baddbmm(site: Site, a: Args) -> list[Stage]:
    return _added(site, a, a.batch1, a.batch2)


@lowers("addmv")
def addmv(site: Site, a: Args) -> list[Stage]:
    return _added(site, a, a.mat, a.vec)


@lowers("outer", "ger")
def outer(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    right = a.vec2
    dtype = site.common([a.self, right])
    x, y = site.cast(site.load(a.self, index[:1]), dtype), site.cast(site.load(right, index[1:]), dtype)
    return [site.store(axes, index, op("mul", x, y))]


@lowers("einsum")
def einsum(site: Site, a: Args) -> list[Stage]:
    """Two operands without a repeated letter in one of them; every letter is an axis."""
    equation = a.equation.replace(" ", "")
    operands: tuple[Value, ...] = a.tensors
    if "." in equation or len(operands) != 2 or not site.dtype().is_float:
        raise NotLowered("an einsum of other than two operands, or with an ellipsis")
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    if "->" not in equation:
        letters = "".join(terms)
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if any(len(set(term)) != len(term) for term in terms):
        raise NotLowered("an einsum that takes a diagonal")
    extents: dict[str, Index] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, extent in zip(term, operand.shape, strict=True):
            if extents.get(letter, ONE) == ONE:
                extents[letter] = extent
    place = {letter: Index.of(Axis(letter, e)) if e != ONE else ZERO for letter, e in extents.items()}
    sides = [
        site.load(operand, [place[letter] for letter in term]) for term, operand in zip(terms, operands, strict=True)
    ]
    for term in terms:  # a letter of one operand only is a plain sum over it
        if set(term) - set(result) - set.intersection(*map(set, terms)):
            raise NotLowered("an einsum that sums one operand alone")
    summed = [Axis(letter, extents[letter]) for letter in extents if letter not in result and extents[letter] != ONE]
    axes = tuple(Axis(letter, extents[letter]) for letter in result if extents[letter] != ONE)
    body = contract(summed, sides[0], sides[1])
    return [site.store(axes, tuple(place[letter] for letter in result), body)]
