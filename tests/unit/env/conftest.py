"""A small Program that needs no capture: ``depth`` elementwise kernels one after another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mtmc.ir.expr import Load, Op, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Program, Ref, Role, Stages
from mtmc.ir.types import DType

Chain = Callable[..., Program]


def make_chain(depth: int = 2, rows: int = 512, columns: int = 1024, op: str = "exp") -> Program:
    shape = (Index.of(rows), Index.of(columns))
    names = ["x", *(f"t{n}" for n in range(depth - 1)), "out"]
    buffers = [Buffer.temp(name, DType.F32, shape) for name in names]
    buffers[0] = Buffer("x", DType.F32, shape, buffers[0].strides, Role.INPUT, "0")
    axes = (Axis("i0", shape[0]), Axis("i1", shape[1]))
    at = tuple(Index.of(axis) for axis in axes)
    kernels = [
        Kernel(
            id=f"k{n}",
            spec=Stages((Stage(axes, names[n + 1], at, Op(op, (Load(names[n], at),))),)),
            op=op,
            calls=(Call(f"aten.{op}.default", (Ref(names[n]),), results=(names[n + 1],)),),
            lines=(10 + n,),
        )
        for n in range(depth)
    ]
    return Program(tuple(buffers), tuple(kernels), ("out",))


@pytest.fixture
def chain() -> Chain:
    return make_chain
