"""The shared emitter: the body of a stage to lines of Triton, at one tile of points.

A renderer decides which *tile variables* exist (``i``; ``m`` and ``k``; ...), how they are shaped and masked, and where
every axis of the stages lies on them (``point``). The emitter then turns expressions into text: loads become named
values, shared sub-expressions are computed once, and everything else stays a formula.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mtmc.codegen.triton.ops import TL_DTYPE, bare, helper_for, render_op
from mtmc.codegen.writer import Writer
from mtmc.errors import CodegenError
from mtmc.ir.expr import (
    Cast,
    Const,
    Contract,
    Expr,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scan,
    Select,
    children,
    dtype_of,
    free_axes,
)
from mtmc.ir.index import Axis, Dim, FloorDiv, Index, Mod, floordiv, nonnegative
from mtmc.ir.ops import ELEMENTWISE
from mtmc.ir.program import Program
from mtmc.ir.types import DType

_INLINE_LIMIT = 72


@dataclass(frozen=True)
class TileVar:
    """One variable of the tile: ``axis`` stands for it in indices, ``text`` in Triton (already shaped to
    broadcast), and ``mask`` is the text of its bounds check, or None where every tile is full."""

    axis: Axis
    text: str
    mask: str | None = None


@dataclass
class FileParts:
    """What the kernels of one file share: the helpers they call, and lines of set-up at the top of the module."""

    helpers: dict[str, None]
    setup: dict[str, None] = field(default_factory=dict)

    @staticmethod
    def new() -> FileParts:
        return FileParts({})


_TAKEN = frozenset({"self", "torch", "nn", "F", "triton", "tl", "device", "m", "n", "k", "i", *keyword.kwlist})


def identifier(name: str) -> str:
    """A Python identifier for a buffer name, free of the names that rendered files use themselves."""
    text = re.sub(r"\W", "_", name)
    return f"{text}_" if text in _TAKEN or text[:1].isdigit() else text


def literal(value: float | int | bool, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "True" if value else "False"
    if dtype.is_float:
        number = float(value)
        if math.isnan(number) or math.isinf(number):
            return f'float("{number}")'
        return repr(number)
    return str(int(value))


class Emitter:
    """Emits expressions of one kernel at one tile. ``bound`` gives text to local buffers, ``given`` to whole
    nodes (a reduction that the renderer has already computed)."""

    def __init__(
        self,
        program: Program,
        writer: Writer,
        parts: FileParts,
        tiles: tuple[TileVar, ...],
        point: Mapping[Axis, Index],
        bound: Mapping[str, str] | None = None,
        given: Mapping[Expr, str] | None = None,
        names: Counter[str] | None = None,
    ) -> None:
        self.program = program
        self.writer = writer
        self.parts = parts
        self.tiles = {tile.axis: tile for tile in tiles}
        self.point = dict(point)
        self.bound = dict(bound or {})
        self.given = dict(given or {})
        self.names = names if names is not None else Counter()
        self._memo: dict[Expr, str] = {}
        self._uses: Counter[Expr] = Counter()
        self._expected: set[Expr] = set()

    # -- public -------------------------------------------------------------------------------------------
    def expect(self, *exprs: Expr) -> None:
        """Announces values that will be asked for: what they share gets a name."""
        for expr in exprs:
            if expr not in self._expected:
                self._expected.add(expr)
                self._count(expr)

    def value(self, expr: Expr) -> str:
        """Emits what the value needs and returns its text."""
        self.expect(expr)
        return self._value(expr)

    def named(self, expr: Expr, hint: str) -> str:
        """Like :meth:`value`, but the result has a name of its own."""
        text = self.value(expr)
        if text.isidentifier():
            return text
        name = self.fresh(hint)
        self.writer.line(f"{name} = {bare(text)}")
        self._memo[expr] = name
        return name

    def stored(self, load: Load) -> str:
        """Emits a load and returns its name; the value keeps the type that it has in memory."""
        return self._load(load, widen=False)

    def fresh(self, hint: str) -> str:
        """A name that this kernel does not use yet."""
        base = identifier(hint)
        self.names[base] += 1
        return base if self.names[base] == 1 else f"{base}_{self.names[base] - 1}"

    def store(self, buffer: str, index: tuple[Index, ...], text: str, when: tuple[Index, ...] = ()) -> None:
        """``tl.store`` of a value at a store map; masked where the tile or ``when`` asks for it."""
        offset, mask = self._address(buffer, index, when)
        pointer = f"{identifier(buffer)}_ptr" + (f" + {offset}" if offset != "0" else "")
        tail = f", mask={mask}" if mask else ""
        rounding = f".to({TL_DTYPE[self.program.dtype(buffer)]}).to(tl.float32)"
        text = text.removesuffix(rounding) if text.endswith(rounding) else text  # the store rounds
        self.writer.line(f"tl.store({pointer}, {bare(text)}{tail})")

    def varies(self, expr: Expr) -> frozenset[Axis]:
        """The tile variables that a value depends on, through bound locals and given nodes as far as indices show."""
        found: set[Axis] = set()
        for axis in free_axes(expr):
            found |= self.point.get(axis, Index.of(axis)).axes
        return frozenset(found & set(self.tiles))

    def dtype(self, expr: Expr) -> DType:
        return dtype_of(expr, self.program.dtype)

    def index(self, index: Index) -> str:
        """Text of an index at this tile's point. Triton's division truncates, so a numerator that may be
        negative is lifted by a multiple of the divisor first."""
        return self._index_text(index.substitute(self.point))

    def condition(self, when: tuple[Index, ...]) -> str | None:
        """Text of ``all of these are >= 0``; None where that is always so."""
        parts: list[str] = []
        for bound in when:
            placed = bound.substitute(self.point)
            if nonnegative(placed):
                continue
            ahead = Index(tuple(term for term in placed.terms if term[1] > 0))
            behind = ahead - placed
            sides = (behind, "<=", ahead) if ahead.constant is not None else (ahead, ">=", behind)
            parts.append(f"({self._index_text(sides[0])} {sides[1]} {self._index_text(sides[2])})")
        return " & ".join(parts) if parts else None

    # -- expressions --------------------------------------------------------------------------------------
    def _count(self, expr: Expr) -> None:
        """Counts uses; what is inside a node that is used twice is used once, by that node's name."""
        if isinstance(expr, Op | Cast | Select):
            self._uses[expr] += 1
            if self._uses[expr] > 1:
                return
        for child in children(expr):
            self._count(child)

    def _value(self, expr: Expr) -> str:
        if expr in self.given:
            return self.given[expr]
        if expr in self._memo:
            return self._memo[expr]
        text = self._render(expr)
        if isinstance(expr, Op | Cast | Select) and (self._uses[expr] > 1 or len(text) > _INLINE_LIMIT):
            name = self.fresh("v")
            self.writer.line(f"{name} = {bare(text)}")
            text = name
        self._memo[expr] = text
        return text

    def _render(self, expr: Expr) -> str:
        match expr:
            case Const(value, dtype):
                return literal(value, dtype)
            case IndexValue(index, _):
                return f"({self.index(index)})"
            case Load():
                return self._load(expr)
            case Cast(dtype, arg):
                return self._cast(expr, dtype, arg)
            case Select(when, then, other):
                condition = self.condition(when)
                if condition is None:
                    return self._value(then)
                return f"tl.where({condition}, {self._value(then)}, {self._value(other)})"
            case Op():
                return self._op(expr)
            case Reduce() | Scan() | Contract():
                raise CodegenError(f"a {type(expr).__name__.lower()} stands where this form cannot compute it")
        raise CodegenError(f"no Triton text for {expr!r}")

    def _op(self, expr: Op) -> str:
        kinds = [self.dtype(arg) for arg in expr.args]
        data = kinds[1:] if expr.name == "where" else kinds
        kind = DType.F64 if DType.F64 in data else next((k for k in data if k.is_float), data[0])
        texts = [self._value(arg) for arg in expr.args]
        if ELEMENTWISE[expr.name].result == "float" and not kind.is_float:
            texts = [f"({text} * 1.0)" for text in texts]
            kind = DType.F32
        helper = helper_for(expr.name, kind)
        if helper:
            self.parts.helpers[helper] = None
        return render_op(expr.name, texts, kind)

    def _cast(self, expr: Cast, dtype: DType, arg: Expr) -> str:
        source = self.dtype(arg)
        text = self._value(arg)
        if isinstance(arg, Const):
            return literal(arg.value, dtype)
        if dtype is DType.BOOL and source is not DType.BOOL:
            return f"({text} != 0)"
        if source is dtype:
            return text
        if dtype in (DType.F16, DType.BF16) and source is DType.F32:
            # computed on in float32 again, but rounded: that is what the cast means
            return f"{wrapped(text)}.to({TL_DTYPE[dtype]}).to(tl.float32)"
        return f"{wrapped(text)}.to({TL_DTYPE[dtype.compute if not dtype.is_float else dtype]})"

    def _load(self, expr: Load, widen: bool = True) -> str:
        if expr.buffer in self.bound:
            return self.bound[expr.buffer]
        static = tuple(sub if isinstance(sub, Index) else Index() for sub in expr.index)
        gathered: list[str] = []
        over: frozenset[Axis] = frozenset()
        for sub, stride in zip(expr.index, self.program.buffer(expr.buffer).strides, strict=True):
            if not isinstance(sub, Index):
                text, step = wrapped(self._value(sub)), self._index_text(stride)
                gathered.append(text if step == "1" else f"{text} * {wrapped(step)}")
                over |= self.varies(sub)
        offset, mask = self._address(expr.buffer, static, expr.when, gathered, over)
        name = self.fresh(expr.buffer)
        pointer = f"{identifier(expr.buffer)}_ptr" + (f" + {offset}" if offset != "0" else "")
        dtype = self.program.dtype(expr.buffer)
        arguments = [pointer]
        if mask:
            other = literal(expr.other, dtype if dtype is not DType.BOOL else DType.I32)
            arguments += [f"mask={mask}", f"other={other}"]
        tail = f".to({TL_DTYPE[dtype.compute]})" if widen and dtype.compute is not dtype else ""
        self.writer.line(f"{name} = tl.load({', '.join(arguments)}){tail}")
        return name

    # -- addresses ----------------------------------------------------------------------------------------
    def _address(
        self,
        buffer: str,
        index: tuple[Index, ...],
        when: tuple[Index, ...],
        gathered: Iterable[str] = (),
        over: frozenset[Axis] = frozenset(),
    ) -> tuple[str, str | None]:
        """Text of the offset and of the mask. ``gathered``: further terms of the offset, which vary ``over`` axes."""
        offset = self.program.buffer(buffer).offset(index).substitute(self.point)
        places = offset.axes | over
        placed = [bound.substitute(self.point) for bound in when]
        bounds = frozenset(axis for bound in placed if not nonnegative(bound) for axis in bound.axes)
        terms = [*([] if offset.constant == 0 else [self._index_text(offset)]), *gathered]
        # Triton wants pointers of the mask's shape
        terms += [f"0 * {tile.text}" for axis, tile in self.tiles.items() if axis in bounds - places]
        return " + ".join(terms) or "0", self._mask(places | bounds, when)

    def _mask(self, needed: frozenset[Axis], when: tuple[Index, ...]) -> str | None:
        texts = [t.mask for axis, t in self.tiles.items() if t.mask and axis in needed]
        condition = self.condition(when)
        texts += [condition] if condition else []
        return bare(" & ".join(texts)) if texts else None

    def _index_text(self, index: Index) -> str:
        return _lift_negative(index).render(self._name)

    def _name(self, atom: Axis | Dim) -> str:
        if isinstance(atom, Dim):
            return atom.name
        if atom not in self.tiles:
            raise CodegenError(f"axis {atom.name} has no place in this tile")
        return self.tiles[atom].text


def _lift_negative(index: Index) -> Index:
    """Rewrites floor divisions and modulos whose numerator may be negative so that truncation agrees."""
    total = Index()
    for mono, coef in index.terms:
        product = Index.of(coef)
        for atom in mono:
            if isinstance(atom, FloorDiv | Mod) and not nonnegative(atom.num):
                lift = floordiv(-1 * atom.num.lower + atom.den - 1, atom.den)
                lifted = type(atom)(_lift_negative(atom.num + lift * atom.den), atom.den)
                value = Index((((lifted,), 1),))
                product = product * (value - lift if isinstance(atom, FloorDiv) else value)
            elif isinstance(atom, FloorDiv | Mod):
                product = product * Index((((type(atom)(_lift_negative(atom.num), atom.den),), 1),))
            else:
                product = product * Index.of(atom)
        total = total + product
    return total


def wrapped(text: str) -> str:
    return text if text.isidentifier() or text.startswith("(") and bare(text) != text else f"({text})"
