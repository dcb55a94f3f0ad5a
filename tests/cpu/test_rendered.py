"""Random Programs, random legal actions: the rendered Triton in the interpreter against the IR's numpy meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtmc.actions import apply, encode, generate, propose, split
from mtmc.actions.rewriting import form_of, scheduled
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction
from mtmc.ir.expr import Op
from mtmc.ir.forms.form import extent, pow2_ceil, typical
from mtmc.ir.interp import run as interpret
from mtmc.ir.printer import print_program
from mtmc.ir.program import Library, Program, Role, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from tests.interpreted import InterpreterProcess
from tests.strategies import at, axes, number, programs, stage, values
from tests.unit.actions.small import Small

EXAMPLES = int(os.environ.get("RENDERED_EXAMPLES", "0"))
"""A bigger budget for a night: ``RENDERED_EXAMPLES=5000 pytest tests/cpu/test_rendered.py``."""
ULP = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def budget(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterProcess]:
    process = InterpreterProcess(tmp_path_factory.mktemp("rendered"))
    yield process
    process.close()


# ---- what a Program becomes -----------------------------------------------------------------------------------


def all_tiled(program: Program) -> Program:
    """What no action touched with its default schedule: these Programs have no PyTorch calls to fall back on."""
    kernels = tuple(
        scheduled(program, kernel, H200) if isinstance(kernel.impl, Library) else kernel for kernel in program.kernels
    )
    return replace(program, kernels=kernels)


def with_inputs_only(program: Program) -> Program:
    """A parameter cannot have a dynamic dim: it becomes an argument."""
    buffers, position = [], sum(buffer.role is Role.INPUT for buffer in program.buffers)
    for buffer in program.buffers:
        if buffer.role is Role.PARAMETER and any(extent.dims for extent in buffer.shape):
            buffer = replace(buffer, role=Role.INPUT, source=str(position))
            position += 1
        buffers.append(buffer)
    return replace(program, buffers=tuple(buffers))


def candidates(program: Program) -> list[Any]:
    """Legal actions, and two kinds that are proposed for larger sizes only."""
    found = list(propose(program, H200).actions)
    for kernel in program.kernels:
        for action in (*(split.action(kernel.id, parts) for parts in (2, 4)), encode.action(kernel.id, "split")):
            try:
                apply(program, action)
            except IllegalAction:
                continue
            found.append(action)
    return found


SMALL = {
    "pointwise": ((16,), (64,)),
    "row": ((1, 4), (2, 8), (4, 16), (16, 2)),
    "scan": ((1, 4), (2, 8), (8, 2)),
    "matmul": ((16, 16, 16), (16, 32, 16)),
}


def small_tiles(program: Program, draw: Any) -> Program:
    """Schedules that cut even these small extents into several tiles."""
    kernels = []
    for kernel in program.kernels:
        if isinstance(kernel.impl, Tile) and draw(st.booleans()):
            old = kernel.impl.schedule
            tile = draw(st.sampled_from(SMALL[old.form]))
            loop, persistent = old.form in ("row", "scan"), old.form == "matmul" and draw(st.booleans())
            if loop:  # never more rows than there are, as in every form's own schedules
                tile = (min(tile[0], pow2_ceil(typical(extent(form_of(program, kernel).kept)))), tile[1])
            new = Schedule(
                old.form, tile, loop=loop, group=draw(st.sampled_from((1, 2))), order=draw(st.integers(0, 1)),
                persistent=persistent, dot=old.dot, separate=old.separate,
            )  # fmt: skip
            kernel = replace(kernel, impl=Tile(new))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels))


# ---- the comparison -------------------------------------------------------------------------------------------


def assert_rendered_means(
    before: Program, after: Program, interpreter: InterpreterProcess, dims: dict[str, int] | None = None
) -> None:
    """The file of ``after`` computes what ``before`` means: the error may be a few times that of computing ``before``
    step by step in its own types, or a few units in the last place of the result's scale."""
    given_values = values(before, dims=dims)
    source, found = interpreter.run(after, given_values)
    with np.errstate(all="ignore"):
        exact, rounded = interpret(before, given_values), interpret(before, given_values, precision="storage")
    for name, got in zip(before.outputs, found, strict=True):
        wanted, own = exact[name], rounded[name].astype(np.float64)
        where = f"\n{print_program(after)}\n{source}"
        assert got.shape == wanted.shape, where
        if before.dtype(name) is DType.I64:  # equal values and rounding decide between positions
            (read,) = before.producer(name).reads
            row, own = exact[read], rounded[read].astype(np.float64)
            got = np.take_along_axis(row, got[..., None], -1)[..., 0]
            wanted, own = row.max(-1), np.take_along_axis(row, rounded[name][..., None], -1)[..., 0]
            scale, dtype = np.abs(row).max(initial=1.0), before.dtype(read)
        else:
            scale, dtype = np.abs(wanted).max(initial=1.0), before.dtype(name)
        allowed = max(3 * np.abs(own - wanted).max(initial=0.0), 8 * ULP[dtype] * scale)
        assert np.isfinite(got).all() and np.abs(got - wanted).max(initial=0.0) <= allowed, (
            f"{name}: error {np.abs(got - wanted).max():.2e}, allowed {allowed:.2e}{where}"
        )


def after_actions(program: Program, data: st.DataObject) -> Program:
    for _ in range(data.draw(st.integers(0, 3))):
        program = apply(program, data.draw(st.sampled_from(candidates(program))))
    return small_tiles(all_tiled(program), data.draw)


@budget(80)
@given(programs(), st.data())
def test_random_actions_keep_the_meaning(
    interpreter: InterpreterProcess, program: Program, data: st.DataObject
) -> None:
    assert_rendered_means(program, after_actions(program, data), interpreter)


@budget(30)
@given(programs(dynamic=True), st.data(), st.integers(1, 9))
def test_dynamic_first_extent(
    interpreter: InterpreterProcess, program: Program, data: st.DataObject, size: int
) -> None:
    program = with_inputs_only(program)
    assert_rendered_means(program, after_actions(program, data), interpreter, {"B": size})


# ---- every candidate of a first decision ----------------------------------------------------------------------


def block() -> Program:
    """A linear layer, a softmax and a sum of its squares."""
    draft = Small()
    hidden = draft.linear(draft.input(17, 40), 24)
    draft.reduce("sum", draft.map("mul", draft.softmax(hidden), number(3.0)), over=1)
    return draft.program()


def chain() -> Program:
    """Two elementwise steps around a maximum that both its neighbours read, and a bfloat16 product."""
    draft = Small(DType.BF16)
    x = draft.input(2, 3, 40)
    shifted = draft.map("add", x, number(0.5))
    rows, columns = axes(draft.shape(shifted))[:2], axes(draft.shape(shifted))
    top = draft.reduce("max", shifted, over=1)
    left = draft.temp(draft.shape(shifted))
    draft.add("sub", stage(columns, left, Op("sub", (at(shifted, *columns), at(top, *rows)))))
    draft.map("tanh", draft.linear(left, 24))
    return draft.program()


@pytest.mark.parametrize("make", [block, chain])
def test_every_first_decision(make: Callable[[], Program], interpreter: InterpreterProcess) -> None:
    before = make()
    ready = apply(before, next(action for action in propose(before, H200).actions if action.kind == generate.KIND))
    program = all_tiled(ready)
    for action in candidates(program):
        try:
            assert_rendered_means(before, all_tiled(apply(program, action)), interpreter)
        except Exception as error:
            raise AssertionError(f"after '{action.describe(program)}'") from error
