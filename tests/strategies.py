"""Hypothesis strategies: random small Programs of the shapes that real ones have, and values to run them
on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from mtmc.ir.expr import Const, Contract, Expr, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Axis, Dim, Index, contiguous_strides
from mtmc.ir.interp import store_as
from mtmc.ir.program import Buffer, Kernel, Program, Role, Stages
from mtmc.ir.types import DType

FLOATS = (DType.F32, DType.F16, DType.BF16)
EXTENTS = (1, 2, 3, 5, 8, 17)


class Draft:
    """A Program under construction; ``draw`` makes the choices."""

    def __init__(self, draw: st.DrawFn, dtype: DType) -> None:
        self.draw = draw
        self.dtype = dtype
        self.buffers: list[Buffer] = []
        self.kernels: list[Kernel] = []

    def pick(self, *options: object) -> object:
        return self.draw(st.sampled_from(options))

    def shape(self, name: str) -> tuple[Index, ...]:
        return next(buffer.shape for buffer in self.buffers if buffer.name == name)

    def given(self, shape: tuple[Index, ...], role: Role) -> str:
        """A new input or parameter."""
        count = sum(buffer.role is role for buffer in self.buffers)
        name, source = (f"x{count}", str(count)) if role is Role.INPUT else (f"p{count}", f"layer{count}.weight")
        self.buffers.append(Buffer(name, self.dtype, shape, contiguous_strides(shape), role, source))
        return name

    def temp(self, shape: tuple[Index, ...], dtype: DType | None = None) -> str:
        name = f"t{sum(buffer.role is Role.TEMP for buffer in self.buffers)}"
        self.buffers.append(Buffer.temp(name, dtype or self.dtype, shape))
        return name

    def kernel(self, op: str, *stages: Stage, local: tuple[str, ...] = ()) -> str:
        number = len(self.kernels)
        self.kernels.append(Kernel(f"k{number}", Stages(stages, local), op, lines=(number + 1,)))
        return stages[-1].target


def axes(shape: tuple[Index, ...], prefix: str = "i") -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{number}", extent) for number, extent in enumerate(shape))


def at(buffer: str, *index: Axis | Index) -> Load:
    return Load(buffer, tuple(map(Index.of, index)))


def number(value: float) -> Const:
    return Const(value, DType.F32)


def stage(over: tuple[Axis, ...], target: str, body: Expr) -> Stage:
    """Stored at its own axes, in order."""
    return Stage(over, target, tuple(map(Index.of, over)), body)


# ---- kernels: each takes the buffer so far and returns the next one --------------------------------------


def activation(draft: Draft, value: Expr) -> Expr:
    """A bounded elementwise function."""
    match draft.pick("relu", "tanh", "sigmoid", "scale", "square", "softsign", "gelu"):
        case "relu":
            return Op("maximum", (value, number(0.0)))
        case "scale":
            return Op("mul", (value, number(0.5)))
        case "square":
            return Op("minimum", (Op("mul", (value, value)), number(4.0)))
        case "softsign":
            return Op("div", (value, Op("add", (number(1.0), Op("abs", (value,))))))
        case "gelu":
            half = Op("mul", (value, number(0.5)))
            return Op("mul", (half, Op("add", (number(1.0), Op("erf", (Op("mul", (value, number(0.75))),))))))
        case name:
            return Op(str(name), (value,))


def pointwise(draft: Draft, source: str) -> str:
    """An activation, read straight, flipped, transposed, padded or under a triangular mask."""
    shape = draft.shape(source)
    kinds = ["straight", "flip", "pad"] + (["transpose", "tril"] if len(shape) > 1 else [])
    kind = draft.pick(*kinds)
    if kind == "transpose":
        over = axes((*shape[:-2], shape[-1], shape[-2]))
        value: Expr = at(source, *over[:-2], over[-1], over[-2])
    elif kind == "pad":
        over = axes((*shape[:-1], shape[-1] + 2))
        last = Index.of(over[-1]) - 1
        value = Load(source, (*map(Index.of, over[:-1]), last), (last, shape[-1] - 1 - last), 0.5)
    else:
        over = axes(shape)
        value = at(source, *over)
        if kind == "flip":
            value = at(source, *over[:-1], shape[-1] - 1 - over[-1])
        if kind == "tril":
            value = Select((Index.of(over[-2]) - over[-1],), value, number(0.0))
    target = draft.temp(tuple(axis.extent for axis in over))
    return draft.kernel(f"pointwise {kind}", stage(over, target, activation(draft, value)))


def binary(draft: Draft, source: str) -> str:
    """With a parameter of the same shape, of the last dimension only, or of one element."""
    shape = draft.shape(source)
    over = axes(shape)
    kind = draft.pick("full", "row", "scalar")
    kept = {"full": over, "row": over[-1:], "scalar": ()}[str(kind)]
    parameter = draft.given(tuple(axis.extent for axis in kept), Role.PARAMETER)
    name = str(draft.pick("add", "sub", "mul", "maximum"))
    target = draft.temp(shape)
    return draft.kernel(name, stage(over, target, Op(name, (at(source, *over), at(parameter, *kept)))))


def reduction(draft: Draft, source: str) -> str:
    """Sum, mean, max, min, prod of a bounded value, or the position of the largest, over the last
    dimension."""
    shape = draft.shape(source)
    over = axes(shape)
    kind = str(draft.pick("sum", "mean", "max", "min", "prod", "argmax"))
    value: Expr = at(source, *over)
    if kind == "prod":
        value = Op("add", (number(1.0), Op("mul", (number(0.1), Op("tanh", (value,))))))
    part = 1 if kind == "argmax" else 0
    body: Expr = Reduce("sum" if kind == "mean" else kind, over[-1:], (value,), part)
    if kind == "mean":
        body = Op("mul", (body, number(1.0 / 8.0)))
    target = draft.temp(shape[:-1], DType.I64 if part else None)
    return draft.kernel(kind, stage(over[:-1], target, body))


def softmax(draft: Draft, source: str) -> str:
    shape = draft.shape(source)
    over = axes(shape)
    row = over[:-1]
    value = at(source, *over)
    largest, total, target = (
        draft.temp(shape[:-1], DType.F32),
        draft.temp(shape[:-1], DType.F32),
        draft.temp(shape),
    )
    shifted = Op("exp", (Op("sub", (value, at(largest, *row))),))
    return draft.kernel(
        "softmax",
        stage(row, largest, Reduce("maxsumexp", over[-1:], (value,), 0)),
        stage(row, total, Reduce("maxsumexp", over[-1:], (value,), 1)),
        stage(over, target, Op("div", (shifted, at(total, *row)))),
        local=(largest, total),
    )


def layer_norm(draft: Draft, source: str) -> str:
    shape = draft.shape(source)
    over = axes(shape)
    row = over[:-1]
    value = at(source, *over)
    mean, m2, target = draft.temp(shape[:-1], DType.F32), draft.temp(shape[:-1], DType.F32), draft.temp(shape)
    weight = draft.given(shape[-1:], Role.PARAMETER)
    scale = Op("rsqrt", (Op("add", (at(m2, *row), number(0.125))),))
    normed = Op("mul", (Op("sub", (value, at(mean, *row))), scale))
    return draft.kernel(
        "layer_norm",
        stage(row, mean, Reduce("moments", over[-1:], (value,), 0)),
        stage(row, m2, Reduce("moments", over[-1:], (value,), 1)),
        stage(over, target, Op("mul", (normed, at(weight, over[-1])))),
        local=(mean, m2),
    )


def scan(draft: Draft, source: str) -> str:
    shape = draft.shape(source)
    over = axes(shape)
    monoid = str(draft.pick("sum", "max", "min"))
    axis = draft.draw(st.sampled_from(over))
    target = draft.temp(shape)
    return draft.kernel(f"scan {monoid}", stage(over, target, Scan(monoid, axis, at(source, *over))))


def matmul(draft: Draft, source: str) -> str:
    """A linear layer (weight [n, k] or [k, n]) with an epilogue; leading dimensions stay."""
    shape = draft.shape(source)
    k = Axis("r0", shape[-1])
    rows = axes(shape[:-1])
    n = Axis(f"i{len(rows)}", Index.of(draft.draw(st.sampled_from(EXTENTS))))
    transposed = draft.pick(True, False)
    weight = draft.given((n.extent, k.extent) if transposed else (k.extent, n.extent), Role.PARAMETER)
    operand = at(weight, n, k) if transposed else at(weight, k, n)
    body: Expr = Contract((k,), ((at(source, *rows, k), operand),))
    if draft.pick(True, False):
        bias = draft.given((n.extent,), Role.PARAMETER)
        body = activation(draft, Op("add", (body, at(bias, n))))
    over = (*rows, n)
    target = draft.temp(tuple(axis.extent for axis in over))
    return draft.kernel("linear", stage(over, target, body))


def pool(draft: Draft, source: str) -> str:
    """The largest (or the sum) of overlapping windows of 3 along the last dimension, stride 2, padded by
    1."""
    shape = draft.shape(source)
    over = axes((*shape[:-1], (shape[-1] - 1) // 2 + 1))
    window = Axis("r0", Index.of(3))
    place = Index.of(over[-1]) * 2 + window - 1
    monoid = str(draft.pick("max", "sum"))
    value = Load(
        source,
        (*map(Index.of, over[:-1]), place),
        (place, shape[-1] - 1 - place),
        -np.inf if monoid == "max" else 0.0,
    )
    target = draft.temp(tuple(axis.extent for axis in over))
    return draft.kernel(f"{monoid} pool", stage(over, target, Reduce(monoid, (window,), (value,))))


KERNELS: dict[str, Callable[[Draft, str], str]] = {
    "pointwise": pointwise,
    "binary": binary,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "scan": scan,
    "matmul": matmul,
    "pool": pool,
    "reduction": reduction,
}


@st.composite
def programs(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = tuple(KERNELS),
    max_kernels: int = 3,
    dtypes: tuple[DType, ...] = FLOATS,
    dynamic: bool = False,
) -> Program:
    """A chain of one to ``max_kernels`` kernels of ``kinds``; ``dynamic`` makes the first extent a declared
    dim."""
    draft = Draft(draw, draw(st.sampled_from(dtypes)))
    rank = draw(st.integers(1, 3))
    shape = tuple(Index.of(draw(st.sampled_from(EXTENTS))) for _ in range(rank))
    if dynamic:
        shape = (Index.of(Dim("B", 64)), *shape[1:])
    current = draft.given(shape, Role.INPUT)
    middles = tuple(kind for kind in kinds if kind != "reduction")
    count = draw(st.integers(1, max_kernels))
    for position in range(count):
        # A reduction ends the chain: its result may have no dimension, or be an integer.
        options = kinds if position == count - 1 or not middles else middles
        if draft.shape(current):
            current = KERNELS[draw(st.sampled_from(options))](draft, current)
    return Program(tuple(draft.buffers), tuple(draft.kernels), (current,))


def values(program: Program, seed: int = 0, dims: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    """Values for everything a Program is given, exact in its storage types; dims default to 4."""
    random = np.random.default_rng(seed)
    sizes = {dim.name: (dims or {}).get(dim.name, 4) for dim in program.dims}
    found: dict[str, np.ndarray] = {}
    for buffer in program.buffers:
        if buffer.role is not Role.TEMP:
            shape = tuple(int(extent.evaluate(sizes)) for extent in buffer.shape)
            found[buffer.name] = store_as(random.standard_normal(shape), buffer.dtype, "storage")
    return found
