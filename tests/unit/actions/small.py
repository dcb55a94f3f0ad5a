"""Small Programs written by hand, and the check that an action keeps their meaning."""

from __future__ import annotations

from typing import cast

import numpy as np
from hypothesis import strategies as st

from mtmc.actions import Action, apply, parse
from mtmc.ir.check import check
from mtmc.ir.expr import Contract, Expr, Load, Op, Reduce, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.interp import Precision, run
from mtmc.ir.program import Call, Kernel, Program, Ref, Role, Stages
from mtmc.ir.types import DType
from tests.strategies import Draft, at, axes, number, stage, values


class Small(Draft):
    """A draft without random choices; every kernel has a call, as captured ones have."""

    def __init__(self, dtype: DType = DType.F32) -> None:
        super().__init__(cast(st.DrawFn, None), dtype)

    def input(self, *shape: int) -> str:
        return self.given(tuple(map(Index.of, shape)), Role.INPUT)

    def add(self, op: str, *stages: Stage, local: tuple[str, ...] = (), rounding: str = "exact") -> str:
        number_ = len(self.kernels)
        spec = Stages(stages, local)
        reads = Kernel("", spec, "").reads
        call = Call(f"aten.{op}.default", tuple(Ref(name) for name in reads), results=(stages[-1].target,))
        self.kernels.append(Kernel(f"k{number_}", spec, op, (call,), lines=(10 + number_,), rounding=rounding))
        return stages[-1].target

    def map(self, op: str, source: str, *more: Expr) -> str:
        """An elementwise kernel ``op(source, *more)`` at the same points."""
        over = axes(self.shape(source))
        return self.add(op, stage(over, self.temp(self.shape(source)), Op(op, (at(source, *over), *more))))

    def reduce(self, monoid: str, source: str, part: int = 0, over: int | None = None) -> str:
        """A reduction of the last ``over`` dimensions (all by default)."""
        points = axes(self.shape(source))
        kept = points[: len(points) - over] if over is not None else ()
        inner = points[len(kept) :]
        dtype = DType.I64 if monoid.startswith("arg") and part else DType.BOOL if monoid == "any" else None
        target = self.temp(tuple(axis.extent for axis in kept), dtype)
        value: Expr = at(source, *points)
        if monoid == "any":
            value = Op("gt", (value, number(1.0)))
        return self.add(monoid, stage(kept, target, Reduce(monoid, inner, (value,), part)))

    def softmax(self, source: str) -> str:
        shape = self.shape(source)
        over = axes(shape)
        row, value = over[:-1], at(source, *over)
        top, total = self.temp(shape[:-1]), self.temp(shape[:-1])
        return self.add(
            "softmax",
            stage(row, top, Reduce("maxsumexp", over[-1:], (value,), 0)),
            stage(row, total, Reduce("maxsumexp", over[-1:], (value,), 1)),
            stage(
                over,
                self.temp(shape),
                Op("div", (Op("exp", (Op("sub", (value, at(top, *row))),)), at(total, *row))),
            ),
            local=(top, total),
        )

    def linear(self, source: str, n: int, rounding: str = "exact") -> str:
        shape = self.shape(source)
        k, rows, column = Axis("r0", shape[-1]), axes(shape[:-1]), Axis("i9", Index.of(n))
        weight = self.given((column.extent, k.extent), Role.PARAMETER)
        body = Contract((k,), ((at(source, *rows, k), at(weight, column, k)),))
        target = self.temp((*shape[:-1], column.extent))
        return self.add("linear", stage((*rows, column), target, body), rounding=rounding)

    def program(self, *outputs: str) -> Program:
        return Program(tuple(self.buffers), tuple(self.kernels), outputs or (self.buffers[-1].name,))


def assert_same_meaning(
    before: Program,
    after: Program,
    tolerance: float = 1e-9,
    given: dict[str, np.ndarray] | None = None,
    precision: Precision = "float64",
) -> dict[str, np.ndarray]:
    """Runs both in numpy, compares the results, and gives all values of the second."""
    check(after)
    given = given if given is not None else values(before)
    with np.errstate(all="ignore"):
        wanted, found = run(before, given), run(after, given, precision=precision)
    assert before.outputs == after.outputs
    for name in before.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance)
    return found


def step(program: Program, line: str) -> Program:
    """The Program after a printed action, which must keep the meaning and print as it was given."""
    action: Action = parse(line)
    assert parse(action.describe(program)) == action
    after = apply(program, action)
    assert_same_meaning(program, after)
    return after


__all__ = ["Load", "Small", "assert_same_meaning", "at", "axes", "number", "stage", "step", "values"]
