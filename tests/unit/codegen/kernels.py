"""A dozen kernels of every form, built by hand: their text is pinned, and each must compile for sm_90."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mtmc.actions import apply, encode, split
from mtmc.codegen.triton.emit import FileParts
from mtmc.codegen.triton.kernel import RenderedKernel
from mtmc.codegen.triton.render import render_kernel
from mtmc.ir.expr import Const, Contract, Expr, Load, Op, Reduce, Scan, Stage
from mtmc.ir.index import Axis, Dim, Index
from mtmc.ir.program import Buffer, Kernel, Program, Role, Stages, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

F32, F16, BF16, I64 = DType.F32, DType.F16, DType.BF16, DType.I64


def axes(**extents: Any) -> tuple[Axis, ...]:
    return tuple(Axis(name, Index.of(extent)) for name, extent in extents.items())


def at(buffer: str, *index: Any, **more: Any) -> Load:
    return Load(buffer, tuple(Index.of(i) for i in index), **more)


def const(value: float) -> Const:
    return Const(value, F32)


def op(name: str, *args: Expr) -> Op:
    return Op(name, args)


def tensor(name: str, *shape: Any, dtype: DType = F32, role: Role = Role.INPUT) -> Buffer:
    return replace(Buffer.temp(name, dtype, tuple(map(Index.of, shape))), role=role)


def temp(name: str, *shape: Any, dtype: DType = F32) -> Buffer:
    return tensor(name, *shape, dtype=dtype, role=Role.TEMP)


def stage(over: tuple[Axis, ...], target: str, body: Expr) -> Stage:
    return Stage(over, target, tuple(map(Index.of, over)), body)


def program(
    name: str, schedule: Schedule, buffers: tuple[Buffer, ...], *stages: Stage, local: tuple[str, ...] = ()
) -> Program:
    kernel = Kernel("k0", Stages(stages, local), name, impl=Tile(schedule), lines=(15,))
    return Program(buffers, (kernel,), (stages[-1].target,))


# ---- pointwise ------------------------------------------------------------------------------------------------


def swish() -> Program:
    (i,) = axes(i=1 << 20)
    x = at("x", i)
    body = op("mul", x, op("sigmoid", x))
    return program(
        "silu", Schedule("pointwise", (1024,)), (tensor("x", 1 << 20), temp("y", 1 << 20)), stage((i,), "y", body)
    )


def broadcast() -> Program:
    """A bias for each channel, a mask, and a half result: i runs over [16, 3, 50, 50]."""
    b, c, h, w = axes(b=16, c=3, h=50, w=50)
    body = op("add", at("x", b, c, h, w), at("bias", c))
    body = op("where", op("gt", body, const(0.0)), body, op("mul", body, const(0.01)))
    buffers = (tensor("x", 16, 3, 50, 50, dtype=F16), tensor("bias", 3, dtype=F16), temp("y", 16, 3, 50, 50, dtype=F16))
    return program("leaky_relu", Schedule("pointwise", (512,)), buffers, stage((b, c, h, w), "y", body))


def max_pool() -> Program:
    """Windows of 3 by 3, stride 2, padding 1."""
    b, c, h, w, p, q = axes(b=4, c=8, h=16, w=16, p=3, q=3)
    y, x = Index.of(h) * 2 + p - 1, Index.of(w) * 2 + q - 1
    inside = (y, 30 - y, x, 30 - x)
    value = at("x", b, c, y, x, when=inside, other=float("-inf"))
    buffers = (tensor("x", 4, 8, 31, 31), temp("y", 4, 8, 16, 16))
    body = Reduce("max", (p, q), (value,))
    return program("max_pool2d", Schedule("pointwise", (256,)), buffers, stage((b, c, h, w), "y", body))


def wide() -> Program:
    """More than 2**31 elements: offsets need 64 bits."""
    i, j = axes(i=1 << 17, j=1 << 15)
    buffers = (tensor("x", 1 << 17, 1 << 15), tensor("scale", 1 << 15), temp("y", 1 << 17, 1 << 15))
    body = op("mul", at("x", i, j), at("scale", j))
    return program("mul", Schedule("pointwise", (1024,)), buffers, stage((i, j), "y", body))


# ---- rows -----------------------------------------------------------------------------------------------------


def softmax(columns: int, schedule: Schedule, dtype: DType = F32) -> Program:
    i, j = axes(i=512, j=columns)
    x = at("x", i, j)
    shifted = op("exp", op("sub", x, at("top", i)))
    return program(
        "softmax",
        schedule,
        (
            tensor("x", 512, columns, dtype=dtype),
            temp("top", 512),
            temp("total", 512),
            temp("y", 512, columns, dtype=dtype),
        ),
        stage((i,), "top", Reduce("maxsumexp", (j,), (x,), 0)),
        stage((i,), "total", Reduce("maxsumexp", (j,), (x,), 1)),
        stage((i, j), "y", op("div", shifted, at("total", i))),
        local=("top", "total"),
    )


def layer_norm() -> Program:
    i, j = axes(i=1000, j=768)
    x = at("x", i, j)
    variance = op("mul", at("m2", i), const(1.0 / 768))
    scale = op("rsqrt", op("add", variance, const(1e-5)))
    normed = op("mul", op("sub", x, at("mean", i)), scale)
    buffers = (tensor("x", 1000, 768, dtype=BF16), tensor("w", 768, dtype=BF16), tensor("b", 768, dtype=BF16))
    buffers += (temp("mean", 1000), temp("m2", 1000), temp("y", 1000, 768, dtype=BF16))
    return program(
        "layer_norm",
        Schedule("row", (2, 1024), warps=4),
        buffers,
        stage((i,), "mean", Reduce("moments", (j,), (x,), 0)),
        stage((i,), "m2", Reduce("moments", (j,), (x,), 1)),
        stage((i, j), "y", op("add", op("mul", normed, at("w", j)), at("b", j))),
        local=("mean", "m2"),
    )


def argmax() -> Program:
    """Over the slow axis of memory."""
    b, i, j = axes(b=8, i=100, j=4096)
    body = Reduce("argmax", (i,), (at("x", b, i, j),), 1)
    buffers = (tensor("x", 8, 100, 4096), temp("y", 8, 4096, dtype=I64))
    return program("argmax", Schedule("row", (128, 32), loop=True, warps=8), buffers, stage((b, j), "y", body))


def argmax_wide() -> Program:
    """Positions are 64-bit values where offsets are."""
    i, j = axes(i=70_000, j=40_000)
    body = Reduce("argmax", (j,), (at("x", i, j),), 1)
    buffers = (tensor("x", 70_000, 40_000), temp("y", 70_000, dtype=I64))
    return program("argmax", Schedule("row", (1, 2048), loop=True, warps=8), buffers, stage((i,), "y", body))


def total(columns: int, schedule: Schedule) -> Program:
    i, j = axes(i=4, j=columns)
    buffers = (tensor("x", 4, columns), temp("y", 4))
    return program("sum", schedule, buffers, stage((i,), "y", Reduce("sum", (j,), (at("x", i, j),))))


def split_sum() -> Program:
    before = total(1_000_000, Schedule("row", (1, 2048), loop=True, warps=8))
    return apply(before, split.action("k0", 16))


def dynamic_softmax() -> Program:
    """A declared batch."""
    b, i, j = axes(b=Dim("B", 4096), i=12, j=100)
    x = at("x", b, i, j)
    batch = b.extent
    shifted = op("exp", op("sub", x, at("top", b, i)))
    return program(
        "softmax",
        Schedule("row", (8, 128)),
        (tensor("x", batch, 12, 100), temp("top", batch, 12), temp("total", batch, 12), temp("y", batch, 12, 100)),
        stage((b, i), "top", Reduce("maxsumexp", (j,), (x,), 0)),
        stage((b, i), "total", Reduce("maxsumexp", (j,), (x,), 1)),
        stage((b, i, j), "y", op("div", shifted, at("total", b, i))),
        local=("top", "total"),
    )


# ---- scans ----------------------------------------------------------------------------------------------------


def cumsum(reverse: bool = False) -> Program:
    """In steps that carry the running sum; reversed as flip(cumsum(flip(x)))."""
    i, j = axes(i=64, j=40_000)
    place = 39_999 - Index.of(j) if reverse else Index.of(j)
    buffers = (tensor("x", 64, 40_000), temp("y", 64, 40_000))
    made = Stage((i, j), "y", (Index.of(i), place), Scan("sum", j, at("x", i, place)))
    return program("cumsum", Schedule("scan", (1, 4096), loop=True, warps=8), buffers, made)


# ---- products -------------------------------------------------------------------------------------------------


def linear_gelu() -> Program:
    i, j, k = axes(i=4096, j=3072, k=768)
    value = op("add", Contract((k,), ((at("x", i, k), at("w", j, k)),)), at("bias", j))
    half, bent = op("mul", value, const(0.5)), op("erf", op("mul", value, const(0.7071067811865476)))
    buffers = (tensor("x", 4096, 768, dtype=BF16), tensor("w", 3072, 768, dtype=BF16), tensor("bias", 3072, dtype=BF16))
    buffers += (temp("y", 4096, 3072, dtype=BF16),)
    schedule = Schedule("matmul", (128, 128, 64), warps=8, stages=3, group=8)
    return program("linear+gelu", schedule, buffers, stage((i, j), "y", op("mul", half, op("add", const(1.0), bent))))


def split_product() -> Program:
    """A float32 product after its operands were encoded: scales, parts, the product itself and the full-range path."""
    i, j, k = axes(i=2048, j=2048, k=2048)
    body = Contract((k,), ((at("a", i, k), at("b", k, j)),))
    buffers = (tensor("a", 2048, 2048), tensor("b", 2048, 2048), temp("c", 2048, 2048))
    schedule = Schedule("matmul", (128, 128, 32), warps=8, stages=3)
    return apply(program("matmul", schedule, buffers, stage((i, j), "c", body)), encode.action("k0", "split"))


KERNELS: dict[str, Callable[[], Program]] = {
    "pointwise": swish,
    "pointwise_broadcast": broadcast,
    "window": max_pool,
    "wide": wide,
    "softmax_registers": lambda: softmax(1000, Schedule("row", (1, 1024), warps=4)),
    "softmax_passes": lambda: softmax(100_000, Schedule("row", (1, 8192), loop=True, warps=16, order=1), F16),
    "layer_norm": layer_norm,
    "argmax": argmax,
    "argmax_wide": argmax_wide,
    "sum_split": split_sum,
    "sum_compensated": lambda: total(2_000_000, Schedule("row", (1, 2048), loop=True, warps=8)),
    "softmax_dynamic": dynamic_softmax,
    "cumsum": cumsum,
    "cumsum_reversed": lambda: cumsum(reverse=True),
    "linear_gelu": linear_gelu,
    "matmul_split": split_product,
}


def numbered(program: Program) -> Program:
    """With positions for the inputs, as capture gives them."""
    inputs = [b.name for b in program.buffers if b.role is Role.INPUT]
    buffers = (replace(b, source=str(inputs.index(b.name))) if b.name in inputs else b for b in program.buffers)
    return replace(program, buffers=tuple(buffers))


def rendered(program: Program) -> tuple[list[RenderedKernel], FileParts]:
    parts = FileParts.new()
    return [render_kernel(program, kernel, parts) for kernel in program.kernels], parts


def text_of(program: Program) -> str:
    """The kernels and their launches, without the helpers."""
    made, _ = rendered(program)
    return "\n".join(f"{kernel.text}\n" + "\n".join(kernel.launch) + "\n" for kernel in made)
