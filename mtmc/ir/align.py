"""Placing a consumer's axes on a producer's, so that two kernels can become one.

A consumer loads a buffer at an index map over its own axes; the producer stores it at a map over other axes.
:func:`align` finds the consumer's axes as expressions over the producer's that make the load read exactly the
point that was just stored. :func:`rename` then carries a stage over, and :func:`inline` instead carries the
producer's body into the loads, at any map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from mtmc.errors import IRError
from mtmc.ir.expr import (
    Cast,
    Const,
    Contract,
    Expr,
    IndexValue,
    Load,
    Reduce,
    Scan,
    Select,
    Stage,
    dtype_of,
    map_loads,
    rebuild,
    substitute,
    walk,
)
from mtmc.ir.index import ONE, ZERO, Axis, Dim, Index, delinearize, linearize, nonnegative, product
from mtmc.ir.types import DType

Places = Mapping[Axis | Dim, Index]
"""Where axes of one stage lie in terms of the axes of another."""


# ---- questions -------------------------------------------------------------------------------------------


def is_pointwise(expr: Expr) -> bool:
    """True if every point is computed on its own: no reduction, scan or contraction inside."""
    return not any(isinstance(node, Reduce | Scan | Contract) for node in walk(expr))


def bound_axes(expr: Expr) -> tuple[Axis, ...]:
    """Axes that reductions and contractions inside the expression bind, in order of first use."""
    found: dict[Axis, None] = {}
    for node in walk(expr):
        if isinstance(node, Reduce | Contract):
            found.update(dict.fromkeys(node.axes))
    return tuple(found)


def stage_axes(stages: Iterable[Stage]) -> tuple[Axis, ...]:
    """All axes of the stages, bound ones included, in order of first use."""
    found: dict[Axis, None] = {}
    for stage in stages:
        found.update(dict.fromkeys(stage.axes))
        found.update(dict.fromkeys(bound_axes(stage.body)))
    return tuple(found)


def same(left: Index, right: Index) -> bool:
    """Equal for every point; axes of extent one are always zero."""
    return left == right or _settle(left) == _settle(right)


def _settle(index: Index) -> Index:
    single: Places = {axis: ZERO for axis in index.axes if axis.extent == ONE}
    return index.substitute(single) if single else index


# ---- solving ---------------------------------------------------------------------------------------------


def align(
    load: Sequence[Index], store: Sequence[Index], shape: Sequence[Index], known: Places | None = None
) -> dict[Axis | Dim, Index]:
    """The axes of ``load`` as expressions over the axes of ``store`` such that both name the same element.

    The two maps must not share axes (see :func:`freshen`). Solved are permutations, shifts and flips (one
    axis with coefficient 1 or -1 a dimension) and reshapes (equal row-major positions). ``known`` places some
    of the axes already; the result contains it. Every answer is verified by substitution.

    Raises:
        IRError: the maps can't be matched; the message says which dimension and why.
    """
    places = dict(known or {})
    for mine, theirs in zip(load, store, strict=True):
        if isinstance(mine.single, Axis) and mine.single.extent == ONE and same(theirs, ZERO):
            places.setdefault(mine.single, theirs)  # the producer's own axis of extent one, where it has one
    for extent_one in [axis for index in load for axis in index.axes if axis.extent == ONE]:
        places.setdefault(extent_one, ZERO)
    _solve_units(load, store, places)
    for mine, theirs in zip(load, store, strict=True):
        if len(_unplaced([mine], places)) > 1 and all(_coefficient(mine, a) for a in mine.axes):
            _solve_digits(mine, theirs, places)
    if _unplaced(load, places):
        _solve_digits(linearize(load, shape), linearize(store, shape), places)
    for number, (mine, theirs) in enumerate(zip(load, store, strict=True)):
        if not same(mine.substitute(places), theirs):
            raise IRError(f"dimension {number} is read at {mine} where {theirs} is stored: no common point")
    return places


def _unplaced(load: Sequence[Index], places: Places) -> list[Axis]:
    found = dict.fromkeys(axis for index in load for axis in sorted(index.axes, key=lambda a: a.name))
    return [axis for axis in found if axis not in places]


def _solve_units(load: Sequence[Index], store: Sequence[Index], places: dict[Axis | Dim, Index]) -> None:
    """Inverts dimensions with one unplaced axis of coefficient 1 or -1, until none is left."""
    progress = True
    while progress:
        progress = False
        for mine, theirs in zip(load, store, strict=True):
            free = [axis for axis in mine.axes if axis not in places]
            if len(free) != 1:
                continue
            coefficient = next((c for mono, c in mine.terms if mono == (free[0],)), 0)
            rest = mine - Index.of(free[0]) * coefficient
            if abs(coefficient) != 1 or free[0] in rest.axes:
                continue
            places[free[0]] = (theirs - rest.substitute(places)) * coefficient
            progress = True


def _solve_digits(mine: Index, theirs: Index, places: dict[Axis | Dim, Index]) -> None:
    """``mine`` is a number whose digits are the unplaced axes: they are the digits of ``theirs``."""
    mine = mine.substitute(places)
    strides: list[tuple[Axis, Index]] = []
    for axis in _unplaced([mine], places):
        stride = _coefficient(mine, axis)
        if stride is None:
            raise IRError(f"axis {axis.name} enters {mine} through a division")
        strides.append((axis, stride))
    strides.sort(key=lambda pair: pair[1].maximum(), reverse=True)
    for axis, stride in strides:
        mine = mine - Index.of(axis) * stride
    scale = unit = strides[-1][1]
    for axis, stride in reversed(strides):
        if stride != unit:
            raise IRError(f"axis {axis.name} steps by {stride} where a reshape steps by {unit}")
        unit = unit * axis.extent
    digits = delinearize((theirs - mine) // scale, [axis.extent for axis, _ in strides])
    places.update({axis: digit for (axis, _), digit in zip(strides, digits, strict=True)})


def _coefficient(index: Index, axis: Axis) -> Index | None:
    """``c`` with ``index = c * axis + rest`` and no axis in the rest; None if there is none."""
    total, rest = ZERO, ZERO
    for mono, coef in index.terms:
        term = Index(((mono, coef),))
        if axis in mono:
            left = list(mono)
            left.remove(axis)
            total = total + Index(((tuple(left), coef),))
        else:
            rest = rest + term
    return total if axis not in total.axes and axis not in rest.axes else None


def covers(places: Places, axes: Iterable[Axis]) -> bool:
    """True if the placed axes run over exactly the points of the axes they are placed on."""
    placed = [axis for axis in axes if axis in places and axis.extent != ONE]
    onto: dict[Axis, None] = {}
    for axis in placed:
        value = places[axis]
        onto.update(dict.fromkeys(value.axes))
        if not (nonnegative(value) and nonnegative(axis.extent - 1 - value)):
            return False
    return product(a.extent for a in placed) == product(a.extent for a in onto if a.extent != ONE)


# ---- carrying stages over --------------------------------------------------------------------------------


def freshen(stages: Sequence[Stage], taken: Iterable[Axis]) -> tuple[Stage, ...]:
    """The same stages over axes whose names are not among those of ``taken``."""
    names = {axis.name for axis in taken}
    mapping: dict[Axis | Dim, Index] = {}
    for axis in stage_axes(stages):
        name = axis.name
        while name in names:
            name = _next_name(name)
        names.add(name)
        if name != axis.name:
            mapping[axis] = Index.of(Axis(name, axis.extent))
    return tuple(rename(stage, mapping) for stage in stages)


def _next_name(name: str) -> str:
    """``i0`` -> ``i1``, ``k`` -> ``k1``."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return f"{stem}{int(digits) + 1 if digits else 1}"


def rename(stage: Stage, places: Places) -> Stage:
    """Replaces axes throughout, bound ones too; the new domain is what the old axes are placed on."""
    if not places:
        return stage
    return Stage(
        _images(stage.axes, places),
        stage.target,
        tuple(index.substitute(places) for index in stage.store),
        rebind(stage.body, places),
        stage.accumulate,
        tuple(index.substitute(places) for index in stage.when),
    )


def _images(axes: Sequence[Axis], places: Places) -> tuple[Axis, ...]:
    found: dict[Axis, None] = {}
    for axis in axes:
        value = places.get(axis, Index.of(axis))
        found.update(dict.fromkeys(sorted(value.axes, key=lambda a: (-_step(value, a), a.name))))
    return tuple(found)


def _step(index: Index, axis: Axis) -> int:
    """How far one step of the axis moves the index: slow axes come first."""
    stride = _coefficient(index, axis)
    return stride.maximum() if stride is not None else 0


def rebind(expr: Expr, places: Places) -> Expr:
    """Like :func:`mtmc.ir.expr.substitute`, and a bound axis may also become several axes or a flip of one.

    Raises:
        IRError: the order of the elements matters to the reduction (argmax, scan) and would change.
    """

    def convert(node: Expr) -> Expr:
        return rebind(node, places)

    match expr:
        case Reduce(monoid, axes, args, _, when):
            bound = _rebound(axes, places, ordered=monoid in ("argmax", "argmin") and len(args) == 1)
            bounds = tuple(index.substitute(places) for index in when)
            return replace(expr, axes=bound, args=tuple(convert(arg) for arg in args), when=bounds)
        case Contract(axes, terms):
            pairs = tuple((convert(a), convert(b)) for a, b in terms)
            return Contract(_rebound(axes, places, ordered=False), pairs)
        case Scan(_, axis, arg):
            place = places.get(axis, Index.of(axis)).single
            if not isinstance(place, Axis):
                raise IRError(f"the scan along {axis.name} can't run along {places[axis]}")
            return replace(expr, axis=place, arg=convert(arg))
        case Load() | Select():
            inner = rebuild(expr, convert)
            return _indices(inner, lambda index: index.substitute(places))
        case IndexValue(index, _):
            return replace(expr, index=index.substitute(places))
        case _:
            return rebuild(expr, convert)


def _indices(expr: Expr, convert: Callable[[Index], Index]) -> Expr:
    """Converts the node's own indices and predicates, not those of its children."""
    match expr:
        case Load(_, index, when):
            subscripts = tuple(convert(sub) if isinstance(sub, Index) else sub for sub in index)
            return replace(expr, index=subscripts, when=tuple(convert(bound) for bound in when))
        case Select(when, _, _):
            return replace(expr, when=tuple(convert(bound) for bound in when))
    return expr


def _rebound(axes: tuple[Axis, ...], places: Places, ordered: bool) -> tuple[Axis, ...]:
    images = _images(axes, places)
    if not any(axis in places for axis in axes):
        return axes
    if product(a.extent for a in axes) != product(a.extent for a in images):
        names = ", ".join(axis.name for axis in axes)
        raise IRError(f"the reduction over {names} would run over another number of elements")
    if ordered:
        before = linearize([places.get(axis, Index.of(axis)) for axis in axes], [a.extent for a in axes])
        if not same(before, linearize(images, [a.extent for a in images])):
            raise IRError("a position that the reduction returns would change its meaning")
    return images


# ---- inlining --------------------------------------------------------------------------------------------


def inline(producers: Sequence[Stage], consumer: Stage, shape: Sequence[Index], dtype: Callable[[str], DType]) -> Stage:
    """The consumer with every load of the producers' target replaced by what is stored there.

    ``producers`` are the pointwise stages that write one buffer of the given ``shape``, in order: one that
    writes it all, or several that each write a part (a concatenation). A load with a predicate becomes a
    ``Select``.

    Raises:
        IRError: the producer is not pointwise, its store map can't be inverted, or the load is a gather.
    """
    target = producers[0].target
    if any(not is_pointwise(stage.body) or stage.accumulate for stage in producers):
        raise IRError(f"{target} is not computed point by point, so it can't be recomputed where it is read")

    def convert(load: Load) -> Expr:
        if load.buffer != target:
            return load
        index = tuple(sub for sub in load.index if isinstance(sub, Index))
        if len(index) != len(load.index):
            raise IRError(f"{target} is gathered at computed positions")
        value: Expr | None = None
        for stage in producers:
            body, inside = _at(stage, index, shape, dtype(target), dtype)
            value = body if value is None or not inside else Select(inside, body, value)
        assert value is not None
        return Select(load.when, value, Const(load.other, dtype(target).compute)) if load.when else value

    return replace(consumer, body=map_loads(consumer.body, convert))


def _at(
    stage: Stage, index: Sequence[Index], shape: Sequence[Index], dtype: DType, dtypes: Callable[[str], DType]
) -> tuple[Expr, tuple[Index, ...]]:
    """What a stage stores at an index, and the conditions (>= 0) under which it stores there."""
    apart = {axis: Axis(f"{axis.name}'", axis.extent) for axis in stage.axes}
    fresh: Places = {axis: Index.of(new) for axis, new in apart.items()}
    places = align([i.substitute(fresh) for i in stage.store], index, shape)
    full: dict[Axis | Dim, Index] = {axis: places.get(new, ZERO) for axis, new in apart.items()}
    body = substitute(stage.body, full)
    # Values of another kind are converted by the store; a half-precision value need not be rounded.
    if dtype_of(body, dtypes) is not dtype.compute:
        body = Cast(dtype, body)
    inside: list[Index] = []
    for axis in stage.axes:
        for bound in (full[axis], axis.extent - 1 - full[axis]):
            if not nonnegative(bound):
                inside.append(bound)
    inside += [bound.substitute(full) for bound in stage.when]
    return body, tuple(inside)
