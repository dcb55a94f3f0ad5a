"""A reduction in partial and final kernels: every monoid, every row shape, matrix products, and what refuses."""

from __future__ import annotations

import numpy as np
import pytest

from mtmc.actions import Action, apply, propose, split
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction
from mtmc.ir.expr import Contract, Op, Reduce
from mtmc.ir.forms import match
from mtmc.ir.index import Axis, Index
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import Role, Stages, Tile
from tests.unit.actions.small import Small, assert_same_meaning, at, axes, number, stage, step, values

COMPONENTS = [(name, part) for name, monoid in MONOIDS.items() for part in range(monoid.arity)]


@pytest.mark.parametrize(("monoid", "part"), COMPONENTS)
@pytest.mark.parametrize("length", [64, 50], ids=["even", "uneven"])
def test_every_component_of_every_monoid(monoid: str, part: int, length: int) -> None:
    small = Small()
    small.reduce(monoid, small.input(3, length), part, over=1)
    program = step(small.program(), "split the reduction of k0 across 4 programs")
    assert [kernel.op for kernel in program.kernels] == [f"partial {monoid}", f"final {monoid}"]
    assert all(isinstance(kernel.impl, Tile) for kernel in program.kernels)


@pytest.mark.parametrize("shape", [(8, 3, 5), (7, 3, 5)], ids=["outermost axis", "flattened"])
def test_a_full_reduction_over_several_axes(shape: tuple[int, ...]) -> None:
    small = Small()
    x = small.input(*shape)
    small.reduce("argmax", x, 1)
    program = small.program()
    ties = {x: np.zeros(shape)}
    for given in (values(program), ties):
        assert_same_meaning(program, apply(program, Action("split", ("k0",), (("parts", 4),))), given=given)


def test_an_epilogue_stays_with_the_final_kernel() -> None:
    small = Small()
    x = small.input(2, 100)
    i, j = axes(small.shape(x))
    mean = Op("mul", (Reduce("sum", (j,), (at(x, i, j),)), number(0.01)))
    small.add("mean", stage((i,), small.temp((i.extent,)), mean))
    program = step(small.program(), "split the reduction of k0 across 8 programs")
    assert len(program.kernels) == 2


def test_a_softmax_has_statistics_and_then_a_pointwise_kernel() -> None:
    small = Small()
    small.softmax(small.input(2, 96))
    program = step(small.program(), "split the reduction of k0 across 4 programs")
    assert [match(program, kernel).name for kernel in program.kernels][-1] == "pointwise"
    assert [kernel.op for kernel in program.kernels] == ["partial softmax", "final softmax", "softmax"]
    assert len(program.buffer("part0").shape) == 2


def test_a_naive_softmax_is_split_level_by_level() -> None:
    small = Small()
    x = small.input(2, 96)
    i, j = axes(small.shape(x))
    top, e, total = small.temp((i.extent,)), small.temp(small.shape(x)), small.temp((i.extent,))
    small.add(
        "softmax",
        stage((i,), top, Reduce("max", (j,), (at(x, i, j),))),
        stage((i, j), e, Op("exp", (Op("sub", (at(x, i, j), at(top, i))),))),
        stage((i,), total, Reduce("sum", (j,), (at(e, i, j),))),
        stage((i, j), small.temp(small.shape(x)), Op("div", (at(e, i, j), at(total, i)))),
        local=(top, e, total),
    )
    program = step(small.program(), "split the reduction of k0 across 4 programs")
    assert len(program.kernels) == 5


def test_channel_statistics_are_reduced_along_the_slow_axis() -> None:
    small = Small()
    x = small.input(8, 5, 4, 4)
    n, c, h, w = axes(small.shape(x))
    body = Reduce("moments", (n, h, w), (at(x, n, c, h, w),), 1)
    small.add("var", stage((c,), small.temp((c.extent,)), body))
    step(small.program(), "split the reduction of k0 across 4 programs")


def test_kept_axes_stay_contiguous_where_memory_has_them_so() -> None:
    small = Small()
    x = small.input(64, 40)
    i, j = axes(small.shape(x))
    small.add("sum", stage((j,), small.temp((j.extent,)), Reduce("sum", (i,), (at(x, i, j),))))
    program = step(small.program(), "split the reduction of k0 across 4 programs")
    assert [extent.constant for extent in program.buffer("part0").shape] == [4, 40]


def test_a_matrix_product_along_k() -> None:
    small = Small()
    x = small.input(8, 64)
    w = small.given((Index.of(16), Index.of(64)), Role.PARAMETER)
    m, n, k = Axis("m", Index.of(8)), Axis("n", Index.of(16)), Axis("k", Index.of(64))
    product = Contract((k,), ((at(x, m, k), at(w, n, k)),))
    body = Op("maximum", (Op("add", (product, number(1.0))), number(0.0)))
    small.add("linear", stage((m, n), small.temp((m.extent, n.extent)), body))
    program = step(small.program(), "split the reduction of k0 across 4 programs")
    assert [match(program, kernel).name for kernel in program.kernels] == ["matmul", "row"]
    with pytest.raises(IllegalAction, match="evenly"):
        apply(small.program(), Action("split", ("k0",), (("parts", 3),)))


def test_a_matrix_vector_product() -> None:
    small = Small()
    x, v = small.input(4, 100), small.input(100)
    i, k = axes(small.shape(x))
    body = Contract((k,), ((at(x, i, k), at(v, k)),))
    small.add("mv", stage((i,), small.temp((i.extent,)), body))
    step(small.program(), "split the reduction of k0 across 8 programs")


def test_a_billion_elements_are_split_by_generate() -> None:
    small = Small()
    small.reduce("sum", small.input(1_000_000_000))
    program = apply(small.program(), Action("generate", ("all",)))
    partial, final = program.kernels
    assert isinstance(partial.spec, Stages) and isinstance(partial.spec.stages[0].body, Reduce)
    parts = program.buffer("part0").shape[0].constant
    assert parts is not None and parts >= H200.sms


def test_advice_for_few_long_rows_only() -> None:
    small = Small()
    small.reduce("sum", small.input(4096, 512), over=1)
    assert not [a for a in propose(small.program(), H200).actions if a.kind == "split"]
    small = Small()
    small.reduce("sum", small.input(4, 1 << 20), over=1)
    counts = [a.number("parts") for a in split.propose(small.program(), H200)]
    assert counts == [32, 64, 128, 256, 512]


@pytest.mark.parametrize(("parts", "reason"), [(1, "2 to 4096"), (200, "can't be split across"), (5000, "2 to 4096")])
def test_illegal_splits_say_why(parts: int, reason: str) -> None:
    small = Small()
    small.reduce("sum", small.input(3, 100), over=1)
    with pytest.raises(IllegalAction, match=reason):
        apply(small.program(), Action("split", ("k0",), (("parts", parts),)))


def test_nothing_to_split() -> None:
    small = Small()
    small.map("exp", small.input(3, 100))
    with pytest.raises(IllegalAction):
        apply(small.program(), Action("split", ("k0",), (("parts", 4),)))
