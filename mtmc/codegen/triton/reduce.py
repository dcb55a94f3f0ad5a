"""Reductions of a tile, for every monoid: at once over a whole row, or lane by lane in a loop."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.codegen.triton.emit import Emitter, literal
from mtmc.codegen.triton.ops import TL_DTYPE, bare
from mtmc.errors import CodegenError
from mtmc.ir.expr import Expr, Reduce, dtype_of
from mtmc.ir.index import Axis
from mtmc.ir.ops import MONOIDS
from mtmc.ir.types import DType

COMPENSATE_ABOVE = 64
"""Steps of a loop above which a sum is compensated."""
_COMBINE = {"prod": "_mul", "max": "_max", "min": "_min"}


@dataclass(frozen=True)
class TileShape:
    """How reductions see the tile: one row of ``COLS`` (1-D), or ``ROWS`` x ``COLS`` (2-D)."""

    two_d: bool
    row: Axis
    column: Axis

    @property
    def text(self) -> str:
        return "[ROWS, COLS]" if self.two_d else "[COLS]"

    def reduce(self, operands: str, combine: str) -> str:
        tail = ", keep_dims=True" if self.two_d else ""
        axis = 1 if self.two_d else 0
        if combine == "sum":
            return f"tl.sum({operands}, {axis}{tail})"
        return f"tl.reduce({operands}, {axis}, {combine}{tail})"


def key_of(node: Reduce) -> Reduce:
    """The reduction without its part: parts of one tuple share the work."""
    return Reduce(node.monoid, node.axes, node.args, 0, node.when)


class Reduction:
    """One reduction (all its parts) of one kernel."""

    def __init__(
        self, node: Reduce, shape: TileShape, prefix: str, *, wide: bool = False, floating: bool = True, steps: int = 1
    ) -> None:
        """``wide``: positions need 64 bits; ``floating``: the values are floats; ``steps``: iterations of the loop."""
        self.node = key_of(node)
        self.monoid = MONOIDS[node.monoid]
        self.lifted = len(node.args) < self.monoid.arity
        self.shape = shape
        self.prefix = prefix
        self.wide = wide
        self.floating = floating
        self.steps = steps

    @property
    def _running_position(self) -> bool:
        return self.lifted and self.node.monoid in ("argmax", "argmin") and not self.node.when

    # -- whole row ----------------------------------------------------------------------------------------
    def whole(self, emitter: Emitter, position: str) -> list[str]:
        """Emits the reduction of a row that is whole in registers; the names of its parts."""
        args, mask = self._arguments(emitter)
        args = [self._shaped(emitter, text, number) for number, text in enumerate(args)]
        name, shape = self.node.monoid, self.shape
        if name == "moments" and self.lifted:
            count = self._count(emitter, mask)
            # a part of a split reduction may be empty
            divisor = f"tl.maximum({count}, 1.0)" if emitter.condition(self.node.when) else count
            mean = self._line(emitter, "mean", f"{shape.reduce(self._or(args[0], mask, '0.0'), 'sum')} / {divisor}")
            delta = self._line(emitter, "delta", self._or(f"{args[0]} - {mean}", mask, "0.0"))
            m2 = self._line(emitter, "m2", shape.reduce(f"{delta} * {delta}", "sum"))
            return [mean, m2, count]
        if name == "maxsumexp" and self.lifted:
            emitter.parts.helpers["_max"] = None
            x = self._line(emitter, "x", self._or(args[0], mask, 'float("-inf")'))
            top = self._line(emitter, "top", shape.reduce(x, "_max"))
            safe = self._line(emitter, "safe", f'tl.where({top} == float("-inf"), 0.0, {top})')
            return [top, self._line(emitter, "total", shape.reduce(f"tl.exp({x} - {safe})", "sum"))]
        values = self._lift(args, position)
        values = [self._or(v, mask, i) for v, i in zip(values, self._identities(emitter), strict=True)]
        if len(values) > len(args):
            values[1] = f"tl.broadcast_to({bare(values[1])}, {shape.text})"
        values = [self._line(emitter, f"x{n}", v) for n, v in enumerate(values)]
        return self._reduce_lanes(emitter, values)

    # -- loop ---------------------------------------------------------------------------------------------
    def start(self, emitter: Emitter) -> None:
        """Emits the accumulators, one value for each lane of the tile."""
        accumulators = list(zip(self._lanes(), self._identities(emitter), self._types(emitter), strict=True))
        for name, identity, dtype in accumulators[: 1 if self._running_position else None]:
            emitter.writer.line(f"{name} = tl.full({self.shape.text}, {identity}, {TL_DTYPE[dtype]})")
        if self._compensated:
            kind = TL_DTYPE[self._types(emitter)[0]]
            emitter.writer.line(f"{self.prefix}_lost = tl.full({self.shape.text}, 0.0, {kind})")
        if self._running_position:
            # a row of nothing but the identity still has a first position
            name, identity, dtype = accumulators[1]
            start = f"tl.where(cols < {self.shape.column.extent}, cols, {identity})"
            start += ".to(tl.int64)" if dtype is DType.I64 else ""  # as the positions of the loop
            emitter.writer.line(f"{name} = tl.broadcast_to({start}, {self.shape.text})")

    @property
    def _compensated(self) -> bool:
        """Long float sums keep the rounding error of every lane (Kahan 1965): a lane that adds a thousand numbers one
        by one would lose three more bits than the library's pairwise sum."""
        return self.node.monoid == "sum" and self.floating and self.steps > COMPENSATE_ABOVE

    def update(self, emitter: Emitter, position: str) -> None:
        """Emits one step: the loop's current values into the accumulators."""
        args, mask = self._arguments(emitter)
        lanes, line = self._lanes(), emitter.writer.line
        name = self.node.monoid
        if self._compensated:
            lost = f"{self.prefix}_lost"
            x = self._line(emitter, "x", f"{self._or(args[0], mask, '0.0')} - {lost}")
            total = self._line(emitter, "next", f"{lanes[0]} + {x}")
            line(f"{lost} = ({total} - {lanes[0]}) - {x}")
            line(f"{lanes[0]} = {total}")
        elif name == "sum":
            line(f"{lanes[0]} += {bare(self._or(args[0], mask, self._identities(emitter)[0]))}")
        elif name in _COMBINE or name == "any":
            combine = {"prod": "_mul", "any": "_max"}.get(name) or _COMBINE[name]
            emitter.parts.helpers[combine] = None
            line(f"{lanes[0]} = {combine}({lanes[0]}, {bare(self._or(args[0], mask, self._identities(emitter)[0]))})")
        elif name == "moments" and self.lifted:
            x = self._line(emitter, "x", args[0])
            one = f"tl.where({mask}, 1.0, 0.0)" if mask else "1.0"
            line(f"{lanes[2]} += {one}")
            delta = self._line(emitter, "delta", self._or(f"{x} - {lanes[0]}", mask, "0.0"))
            line(f"{lanes[0]} += {delta} / " + (f"tl.maximum({lanes[2]}, 1.0)" if mask else lanes[2]))
            line(f"{lanes[1]} += {delta} * ({self._or(f'{x} - {lanes[0]}', mask, '0.0')})")
        elif name == "maxsumexp" and self.lifted:
            x = self._line(emitter, "x", self._or(args[0], mask, 'float("-inf")'))
            emitter.parts.helpers["_max"] = None
            top = self._line(emitter, "new_top", f"_max({lanes[0]}, {x})")
            safe = self._line(emitter, "safe", f'tl.where({top} == float("-inf"), 0.0, {top})')
            line(f"{lanes[1]} = {lanes[1]} * tl.exp({lanes[0]} - {safe}) + tl.exp({x} - {safe})")
            line(f"{lanes[0]} = {top}")
        elif self._running_position:
            # positions only grow, so the first of equals stays by itself
            x = self._line(emitter, "x", self._or(args[0], mask, self._identities(emitter)[0]))
            sign = ">" if name == "argmax" else "<"
            better = f"({x} {sign} {lanes[0]})"
            if dtype_of(self.node.args[0], emitter.program.dtype).is_float:
                better += f" | (({x} != {x}) & ({lanes[0]} == {lanes[0]}))"
            take = self._line(emitter, "take", better)
            line(f"{lanes[0]} = tl.where({take}, {x}, {lanes[0]})")
            line(f"{lanes[1]} = tl.where({take}, {position}, {lanes[1]})")
        else:
            values = self._lift(args, position)
            values = [self._or(v, mask, i) for v, i in zip(values, self._identities(emitter), strict=True)]
            combine = f"_{name}"
            emitter.parts.helpers[combine] = None
            line(f"{', '.join(lanes)} = {combine}({', '.join(lanes + [bare(v) for v in values])})")

    def finish(self, emitter: Emitter) -> list[str]:
        """Emits the combination of the lanes; the names of the parts."""
        return self._reduce_lanes(emitter, self._lanes())

    # -- pieces -------------------------------------------------------------------------------------------
    def _reduce_lanes(self, emitter: Emitter, lanes: list[str]) -> list[str]:
        name = self.node.monoid
        parts = [emitter.fresh(f"{self.prefix}_{part}") for part in self.monoid.parts]
        if name == "sum":
            emitter.writer.line(f"{parts[0]} = {self.shape.reduce(lanes[0], 'sum')}")
            return parts
        combine = {"any": "_max", "prod": "_mul", "max": "_max", "min": "_min"}.get(name, f"_{name}")
        emitter.parts.helpers[combine] = None
        operands = lanes[0] if len(lanes) == 1 else f"({', '.join(lanes)})"
        emitter.writer.line(f"{', '.join(parts)} = {self.shape.reduce(operands, combine)}")
        return parts

    def _arguments(self, emitter: Emitter) -> tuple[list[str], str | None]:
        texts = [emitter.value(arg) for arg in self.node.args]
        if self.node.monoid == "any":
            texts = [f"({texts[0]} != 0).to(tl.int32)"]
        condition = emitter.condition(self.node.when)
        column = emitter.tiles[self.shape.column].mask
        masks = [text for text in (column, condition) if text]
        return texts, " & ".join(masks) if masks else None

    def _lanes(self) -> list[str]:
        return [f"{self.prefix}_{part}s" for part in self.monoid.parts]

    def _types(self, emitter: Emitter) -> list[DType]:
        first = dtype_of(self.node.args[0], emitter.program.dtype)
        if self.node.monoid == "any":
            return [DType.I32]
        if self.node.monoid in ("argmax", "argmin"):
            return [first, DType.I64 if self.wide else DType.I32]
        return [first] * self.monoid.arity

    def _identities(self, emitter: Emitter) -> list[str]:
        first, *rest = self.monoid.identity
        kind = dtype_of(self.node.args[0], emitter.program.dtype)
        if self.node.monoid == "any":
            return ["0"]
        if not kind.is_float and first in (float("inf"), float("-inf")):
            bits = 8 * (kind.bytes if kind is not DType.BOOL else 4)
            edge = -(2 ** (bits - 1)) if first < 0 else 2 ** (bits - 1) - 1
            return [str(edge), *("0" for _ in rest)]
        if self.node.monoid in ("argmax", "argmin"):
            # a masked lane must lose against every element, one that holds the identity value too
            return [literal(first, kind), "2147483647"]
        return [literal(value, kind) for value in self.monoid.identity]

    def _lift(self, args: list[str], position: str) -> list[str]:
        if not self.lifted:
            return args
        if self.node.monoid in ("argmax", "argmin"):
            return [args[0], position]
        if self.monoid.arity != self.monoid.lift:
            raise CodegenError(f"no lifted form of {self.node.monoid}")
        return args

    def _shaped(self, emitter: Emitter, text: str, number: int) -> str:
        """A value that does not vary over the whole tile is spread over it first."""
        needed = {self.shape.row, self.shape.column} if self.shape.two_d else {self.shape.column}
        if emitter.varies(self.node.args[number]) >= needed:
            return text
        return f"tl.broadcast_to({bare(text)}, {self.shape.text})"

    def _count(self, emitter: Emitter, mask: str | None) -> str:
        condition = emitter.condition(self.node.when)
        if condition is None:
            total = emitter.tiles[self.shape.column].axis.extent
            text = f"{total.constant}.0" if total.constant is not None else f"({total}) * 1.0"
            return text if total.constant is not None else self._line(emitter, "count", text)
        spread = f"tl.broadcast_to(tl.where({mask}, 1.0, 0.0), {self.shape.text})"
        return self._line(emitter, "count", self.shape.reduce(spread, "sum"))

    def _line(self, emitter: Emitter, hint: str, text: str) -> str:
        if text.isidentifier():
            return text
        name = emitter.fresh(f"{self.prefix}_{hint}")
        emitter.writer.line(f"{name} = {bare(text)}")
        return name

    @staticmethod
    def _or(text: str, mask: str | None, other: str) -> str:
        return f"tl.where({mask}, {bare(text)}, {other})" if mask else text


def distinct(nodes: list[Expr]) -> list[Reduce]:
    """Reductions without their parts, each once, in order."""
    return list(dict.fromkeys(key_of(node) for node in nodes if isinstance(node, Reduce)))
