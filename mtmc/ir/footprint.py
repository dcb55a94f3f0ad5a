"""How many elements of a buffer an index map touches, between proven limits.

Subscripts that share no axis are independent, so the count is a product over groups of subscripts; a small
group is enumerated, predicates included, which makes windows, strides, pads and triangles exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from mtmc.ir.expr import Expr, Load, Op, Reduce, Select, Subscript, children, free_axes
from mtmc.ir.index import Axis, Index, linearize

LARGEST_ENUMERATION = 1 << 20
"""Points of one group; above, the limits are those of its ranges."""


@dataclass(frozen=True)
class Footprint:
    """Distinct elements: ``at_least`` is a proof, ``at_most`` the estimate."""

    at_least: int
    at_most: int


def points(axes: Iterable[Axis], dims: Mapping[str, int]) -> int:
    """Number of points of some axes together."""
    return math.prod(max(int(axis.extent.evaluate(dims)), 0) for axis in axes)


def of_load(load: Load, shape: tuple[Index, ...], dims: Mapping[str, int]) -> Footprint:
    """Elements of a buffer of ``shape`` that one load touches over all points of its axes."""
    if all(isinstance(subscript, Index) for subscript in load.index):
        return of_map(tuple(_indices(load.index)), shape, load.when, dims)
    # A gather may hit one element again and again, or never the same.
    return Footprint(0, min(points(free_axes(load), dims), math.prod(int(e.evaluate(dims)) for e in shape)))


def guarded_loads(expr: Expr, when: tuple[Index, ...] = (), certain: bool = True) -> Iterator[tuple[Load, bool]]:
    """All loads, each with the predicates around it added to its own; False where not all of them are
    known."""
    match expr:
        case Load():
            yield (replace(expr, when=(*expr.when, *when)) if when else expr), certain
        case Reduce():
            when = (*when, *expr.when)
        case Select():
            yield from guarded_loads(expr.then, (*when, *expr.when), certain)
            # The complement of one predicate is a predicate; of several it is no conjunction.
            single = len(expr.when) == 1
            other = (-1 - expr.when[0],) if single else ()
            yield from guarded_loads(expr.other, (*when, *other), certain and single)
            return
        case Op("where", (condition, *sides)):  # a kernel may load only the side that the values choose
            yield from guarded_loads(condition, when, certain)
            for side in sides:
                yield from guarded_loads(side, when, False)
            return
    for child in children(expr):
        yield from guarded_loads(child, when, certain)


def _indices(subscripts: tuple[Subscript, ...]) -> Iterable[Index]:
    return (subscript for subscript in subscripts if isinstance(subscript, Index))


def of_map(
    index: tuple[Index, ...], shape: tuple[Index, ...], when: tuple[Index, ...], dims: Mapping[str, int]
) -> Footprint:
    """Elements that ``index`` reaches where every ``when`` is >= 0."""
    return _of_map(index, shape, when, tuple(sorted(dims.items())))


@lru_cache(maxsize=4096)
def _of_map(
    index: tuple[Index, ...],
    shape: tuple[Index, ...],
    when: tuple[Index, ...],
    dims: tuple[tuple[str, int], ...],
) -> Footprint:
    env = dict(dims)
    least = most = 1
    for places, predicates in _groups(index, when):
        group = _group(
            tuple(index[place] for place in places), tuple(shape[place] for place in places), predicates, env
        )
        least, most = least * group.at_least, most * group.at_most
    return Footprint(least, most)


def _groups(index: tuple[Index, ...], when: tuple[Index, ...]) -> list[tuple[list[int], tuple[Index, ...]]]:
    """Positions of subscripts, and predicates, joined where they share an axis."""
    groups: list[tuple[set[Axis], list[int], list[Index]]] = []
    items: list[tuple[Index, int | None]] = [(sub, place) for place, sub in enumerate(index)]
    items += [(predicate, None) for predicate in when]
    for item, place in items:
        axes = set(item.axes)
        places, predicates = ([], [item]) if place is None else ([place], [])
        apart = []
        for group in groups:
            if group[0] & axes:
                axes, places, predicates = axes | group[0], group[1] + places, group[2] + predicates
            else:
                apart.append(group)
        groups = [*apart, (axes, places, predicates)]
    return [(sorted(places), tuple(predicates)) for _, places, predicates in groups]


def _group(
    index: tuple[Index, ...], shape: tuple[Index, ...], when: tuple[Index, ...], env: dict[str, int]
) -> Footprint:
    sizes = [int(extent.evaluate(env)) for extent in shape]
    whole = math.prod(sizes)
    axes = sorted({axis for item in (*index, *when) for axis in item.axes}, key=lambda axis: axis.name)
    position = linearize(index, shape)
    if not when and isinstance(position.single, Axis):
        reached = min(points([position.single], env), whole)
        return Footprint(reached, reached)
    domain = points(axes, env)
    if domain <= LARGEST_ENUMERATION and whole <= 64 * LARGEST_ENUMERATION:
        reached = _enumerate(index, sizes, when, axes, env)
        return Footprint(reached, reached)
    ranges = math.prod(
        max(min(int(sub.upper.evaluate(env)), size - 1) - max(int(sub.lower.evaluate(env)), 0) + 1, 0)
        for sub, size in zip(index, sizes, strict=True)
    )
    limit = min(domain, ranges)
    return Footprint(domain if not when and injective(position, axes, env) else 0, limit)


def _enumerate(
    index: tuple[Index, ...], sizes: list[int], when: tuple[Index, ...], axes: list[Axis], env: dict[str, int]
) -> int:
    grids = np.meshgrid(*(np.arange(points([axis], env)) for axis in axes), indexing="ij", sparse=True)
    local = {**env, **{axis.name: grid for axis, grid in zip(axes, grids, strict=True)}}
    shape = tuple(points([axis], env) for axis in axes)
    held = np.ones(shape, dtype=bool)
    position = np.zeros(shape, dtype=np.int64)
    for predicate in when:
        held &= np.asarray(predicate.evaluate(local)) >= 0
    for sub, size in zip(index, sizes, strict=True):
        value = np.asarray(sub.evaluate(local))
        held &= (value >= 0) & (value < size)  # what is outside is never read
        position = position * size + value
    if not index:
        return int(held.any())
    reached = np.zeros(math.prod(sizes), dtype=bool)
    reached[position[held]] = True
    return int(np.count_nonzero(reached))


def injective(position: Index, axes: Iterable[Axis], dims: Mapping[str, int]) -> bool:
    """True where ``position`` provably takes another value at every point of ``axes``: a mixed-radix number,
    whose every coefficient is larger than all that the smaller ones can add up to."""
    steps: dict[Axis, int] = {}
    for mono, coef in position.terms:
        inside = [atom for atom in mono if Index((((atom,), 1),)).axes]
        if not inside:
            continue
        if len(inside) > 1 or not isinstance(inside[0], Axis):
            return False
        rest = list(mono)
        rest.remove(inside[0])
        step = int(Index(((tuple(rest), coef),)).evaluate(dims))
        steps[inside[0]] = steps.get(inside[0], 0) + step
    reach = 0
    for axis, step in sorted(steps.items(), key=lambda item: abs(item[1])):
        if abs(step) <= reach:
            return False
        reach += abs(step) * (points([axis], dims) - 1)
    return all(axis in steps or points([axis], dims) <= 1 for axis in axes)
