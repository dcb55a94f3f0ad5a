"""The body of a stage: a tensor expression over named axes, in the sense of Halide and TVM TE.

Loads carry quasi-affine index maps and predicates, so views, permutations, padding, broadcast, slices and rolls
are maps and never kernels. Half-precision loads compute in float32; only a store rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from mtmc.errors import IRError
from mtmc.ir.index import Axis, Index
from mtmc.ir.ops import ELEMENTWISE, MONOIDS
from mtmc.ir.types import DType

Subscript: TypeAlias = "Index | Expr"

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def _node(cls: type[_T]) -> type[_T]:
    """A frozen dataclass whose hash is computed once: expressions are deep, and every table here is keyed by them."""
    made = dataclass(frozen=True)(cls)
    plain = made.__hash__

    def cached(self: object) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = plain(self)
            object.__setattr__(self, "_hash", known)
        return known

    made.__hash__ = cached  # type: ignore[method-assign, assignment]
    return made


@_node
class Const:
    value: float | int | bool
    dtype: DType


@_node
class IndexValue:
    """An index used as a number (an arange, a triangular mask)."""

    index: Index
    dtype: DType = DType.I64


@_node
class Load:
    """``buffer[index]`` where every ``when`` is >= 0, else ``other``. A subscript may itself be an integer
    expression: then the load is a gather."""

    buffer: str
    index: tuple[Subscript, ...]
    when: tuple[Index, ...] = ()
    other: float = 0.0


@_node
class Op:
    """An elementwise operation of :data:`mtmc.ir.ops.ELEMENTWISE`."""

    name: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if self.name not in ELEMENTWISE or len(self.args) != ELEMENTWISE[self.name].arity:
            raise IRError(f"'{self.name}' with {len(self.args)} arguments is not an elementwise operation")


@_node
class Select:
    """``then`` where every ``when`` is >= 0, else ``other``; predicates on indices, so both sides may be
    loads that are only valid on their side."""

    when: tuple[Index, ...]
    then: Expr
    other: Expr


@_node
class Cast:
    dtype: DType
    arg: Expr


@_node
class Reduce:
    """Component ``part`` of a reduction of ``args`` over ``axes`` by a monoid; positions where some ``when`` is
    negative do not take part."""

    monoid: str
    axes: tuple[Axis, ...]
    args: tuple[Expr, ...]
    part: int = 0
    when: tuple[Index, ...] = ()

    def __post_init__(self) -> None:
        monoid = MONOIDS.get(self.monoid)
        if monoid is None or len(self.args) not in (monoid.lift, monoid.arity) or self.part >= monoid.arity:
            raise IRError(f"'{self.monoid}' part {self.part} of {len(self.args)} arguments is not a reduction")


@_node
class Scan:
    """Running reduction along ``axis``, inclusive, in the order of the axis; sum, prod, max or min."""

    monoid: str
    axis: Axis
    arg: Expr


@_node
class Contract:
    """``sum over axes of a * b``, summed over ``terms``: what the tensor cores do. Several terms share one
    accumulator."""

    axes: tuple[Axis, ...]
    terms: tuple[tuple[Expr, Expr], ...]


Expr: TypeAlias = Const | IndexValue | Load | Op | Select | Cast | Reduce | Scan | Contract


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, value subscripts of gathers included."""
    match expr:
        case Const() | IndexValue():
            return ()
        case Load(_, index):
            return tuple(sub for sub in index if not isinstance(sub, Index))
        case Op(_, args) | Reduce(_, _, args):
            return args
        case Select(_, then, other):
            return (then, other)
        case Cast(_, arg) | Scan(_, _, arg):
            return (arg,)
        case Contract(_, terms):
            return tuple(side for term in terms for side in term)
    raise IRError(f"not an expression: {expr!r}")


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all that is in it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def rebuild(expr: Expr, convert: Callable[[Expr], Expr]) -> Expr:
    """The same node with every direct child converted."""
    match expr:
        case Const() | IndexValue():
            return expr
        case Load(_, index):
            if all(isinstance(sub, Index) for sub in index):
                return expr
            return replace(expr, index=tuple(s if isinstance(s, Index) else convert(s) for s in index))
        case Op(_, args) | Reduce(_, _, args):
            return replace(expr, args=tuple(convert(arg) for arg in args))
        case Select(_, then, other):
            return replace(expr, then=convert(then), other=convert(other))
        case Cast(_, arg) | Scan(_, _, arg):
            return replace(expr, arg=convert(arg))
        case Contract(_, terms):
            return replace(expr, terms=tuple((convert(a), convert(b)) for a, b in terms))
    raise IRError(f"not an expression: {expr!r}")


def map_loads(expr: Expr, convert: Callable[[Load], Expr]) -> Expr:
    """Replaces every load, innermost first."""
    inner = rebuild(expr, lambda child: map_loads(child, convert))
    return convert(inner) if isinstance(inner, Load) else inner


def loads(expr: Expr) -> list[Load]:
    return [node for node in walk(expr) if isinstance(node, Load)]


def substitute(expr: Expr, mapping: Mapping[Any, Index]) -> Expr:
    """Replaces free axes (and dims) in every index. Bound axes (of reductions) may be mapped to axes only."""
    if not mapping:
        return expr

    def convert(node: Expr) -> Expr:
        return substitute(node, mapping)

    def each(indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(index.substitute(mapping) for index in indices)

    def bound(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        renamed: list[Axis] = []
        for axis, image in mapping.items():
            if axis not in axes and image.axes & {a for a in axes if a not in mapping} and axis in free_axes(expr):
                raise IRError(f"axis {axis.name} cannot become {image}: a reduction inside binds that axis")
        for axis in axes:
            target = mapping.get(axis, Index.of(axis))
            if not isinstance(target.single, Axis):
                raise IRError(f"axis {axis.name} is bound by a reduction and cannot become {target}")
            renamed.append(target.single)
        if len(set(renamed)) != len(renamed):
            raise IRError(f"two reduced axes cannot both become {renamed[0].name}")
        return tuple(renamed)

    match expr:
        case Const():
            return expr
        case IndexValue(index, _):
            return replace(expr, index=index.substitute(mapping))
        case Load(_, index, when):
            subscripts = tuple(s.substitute(mapping) if isinstance(s, Index) else convert(s) for s in index)
            return replace(expr, index=subscripts, when=each(when))
        case Select(when, then, other):
            return Select(each(when), convert(then), convert(other))
        case Reduce(_, axes, args, _, when):
            return replace(expr, axes=bound(axes), args=tuple(convert(a) for a in args), when=each(when))
        case Scan(_, axis, arg):
            return replace(expr, axis=bound((axis,))[0], arg=convert(arg))
        case Contract(axes, terms):
            return Contract(bound(axes), tuple((convert(a), convert(b)) for a, b in terms))
        case _:
            return rebuild(expr, convert)


def free_axes(expr: Expr) -> frozenset[Axis]:
    """Axes that the value depends on: those of all indices less those bound by reductions inside."""
    found: frozenset[Axis] = frozenset()
    for child in children(expr):
        found |= free_axes(child)
    match expr:
        case IndexValue(index, _):
            found |= index.axes
        case Load(_, index, when):
            for part in (*(s for s in index if isinstance(s, Index)), *when):
                found |= part.axes
        case Select(when, _, _):
            for part in when:
                found |= part.axes
        case Reduce(_, axes, _, _, when):
            for part in when:
                found |= part.axes
            found -= frozenset(axes)
        case Contract(axes, _):
            found -= frozenset(axes)
    return found


def dtype_of(expr: Expr, buffer_dtype: Callable[[str], DType]) -> DType:
    """The type a kernel computes the value in."""
    match expr:
        case Const(_, dtype) | IndexValue(_, dtype):
            return dtype.compute
        case Load(buffer):
            return buffer_dtype(buffer).compute
        case Cast(dtype, _):
            return dtype.compute
        case Select(_, then, other):
            return promote(dtype_of(then, buffer_dtype), dtype_of(other, buffer_dtype))
        case Reduce(monoid, _, args, part):
            if monoid in ("argmax", "argmin") and part == 1:
                return DType.I64
            return dtype_of(args[0], buffer_dtype)
        case Scan(_, _, arg):
            return dtype_of(arg, buffer_dtype)
        case Contract(_, terms):
            widest = dtype_of(terms[0][0], buffer_dtype)
            return widest if widest is not DType.BOOL else DType.F32
        case Op(name, args):
            result = ELEMENTWISE[name].result
            if result == "bool":
                return DType.BOOL
            kinds = [dtype_of(arg, buffer_dtype) for arg in (args[1:] if name == "where" else args)]
            widest = kinds[0]
            for kind in kinds[1:]:
                widest = promote(widest, kind)
            return DType.F32 if result == "float" and not widest.is_float else widest
    raise IRError(f"not an expression: {expr!r}")


_ORDER = (DType.BOOL, DType.U8, DType.I8, DType.I16, DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64)


def promote(left: DType, right: DType) -> DType:
    """The wider of two compute types. Scalars were already cast at capture."""
    return max(left, right, key=_ORDER.index)


@dataclass(frozen=True)
class Stage:
    """For every point of ``axes``: ``target[store] = body`` (where every ``when`` is >= 0).

    ``accumulate`` (``add``, or ``max`` of values >= 0) combines into the target atomically instead of assigning. The
    launch plan fills the target with 0 before the kernel, and axes may then be missing from the store map.
    """

    axes: tuple[Axis, ...]
    target: str
    store: tuple[Index, ...]
    body: Expr
    accumulate: str | None = None
    when: tuple[Index, ...] = ()

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Buffers that the body loads, in order of first use."""
        return tuple(dict.fromkeys(load.buffer for load in loads(self.body)))

    def rename(self, mapping: Mapping[Axis, Index]) -> Stage:
        """Replaces axes throughout; the new domain is the axes that the old ones map to, in order."""
        axes: dict[Axis, None] = {}
        for axis in self.axes:
            for new in sorted(mapping.get(axis, Index.of(axis)).axes, key=lambda a: a.name):
                axes[new] = None
        return Stage(
            tuple(axes),
            self.target,
            tuple(index.substitute(mapping) for index in self.store),
            substitute(self.body, mapping),
            self.accumulate,
            tuple(index.substitute(mapping) for index in self.when),
        )
