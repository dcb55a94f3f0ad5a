"""Which kernels become one, what then stays in memory, and why others don't."""

from __future__ import annotations

import pytest

from mtmc.actions import Action, apply
from mtmc.errors import IllegalAction
from mtmc.ir.expr import Load, Op, Reduce, Select, Stage
from mtmc.ir.forms import match
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Opaque, Program, Stages, Tile
from mtmc.ir.types import DType
from tests.unit.actions.small import Small, at, axes, number, stage, step


def only(program: Program) -> str:
    """The form of the one kernel that is left."""
    (kernel,) = program.kernels
    assert isinstance(kernel.impl, Tile)
    assert match(program, kernel).name == kernel.impl.schedule.form
    return kernel.impl.schedule.form


def test_a_chain_of_elementwise_kernels() -> None:
    small = Small()
    x = small.input(6, 40)
    small.map("mul", small.map("tanh", small.map("exp", x)), number(2.0))
    program = step(step(small.program(), "fuse k0 and k1"), "fuse k0 and k2")
    assert only(program) == "pointwise"
    kernel = program.kernels[0]
    assert (kernel.op, kernel.lines, kernel.reads) == ("exp+tanh+mul", (10, 11, 12), ("x0",))
    assert [call.target for call in kernel.calls] == ["aten.exp.default", "aten.tanh.default", "aten.mul.default"]
    assert [buffer.name for buffer in program.buffers] == ["x0", "t0", "t1", "t2"]  # its calls still name them


def test_an_epilogue_of_a_matrix_product() -> None:
    small = Small()
    small.map("maximum", small.linear(small.input(8, 32), 16), number(0.0))
    program = step(small.program(), "fuse k0 (linear, line 10) and k1 (maximum, line 11)")
    assert only(program) == "matmul"


def test_a_prologue_is_recomputed_inside_the_operand() -> None:
    small = Small()
    small.linear(small.map("tanh", small.input(8, 32)), 16)
    program = step(small.program(), "fuse k0 and k1")
    assert only(program) == "matmul"
    assert set(program.kernels[0].reads) == {"x0", "p0"}


def test_a_softmax_and_what_surrounds_it() -> None:
    small = Small()
    small.map("mul", small.softmax(small.map("tanh", small.input(5, 17))), number(3.0))
    program = step(step(small.program(), "fuse k0 and k1"), "fuse k0 and k2")
    assert only(program) == "row"
    assert program.kernels[0].writes == ("t4",)


def test_a_value_that_others_read_stays_in_memory() -> None:
    small = Small()
    t0 = small.map("tanh", small.input(5, 17))
    t1 = small.reduce("sum", t0, over=1)
    program = step(small.program(t0, t1), "fuse k0 and k1")
    assert program.kernels[0].writes == (t0, t1)
    assert only(program) in ("row", "pointwise")


def test_a_producer_with_another_reader_is_recomputed_and_stays() -> None:
    small = Small()
    x = small.input(16, 16)
    t0 = small.map("tanh", x)
    wide = (Index.of(3), *small.shape(t0))
    over = axes(wide)
    t1 = small.add("exp", stage(over, small.temp(wide), Op("exp", (at(t0, over[2], over[1]),))))
    t2 = small.linear(t0, 8)
    program = step(small.program(t1, t2), "fuse k0 and k1")
    assert [kernel.id for kernel in program.kernels] == ["k0", "k1", "k2"]
    program = step(program, "fuse k0 and k2")
    assert [kernel.id for kernel in program.kernels] == ["k0", "k1"]
    assert all("t0" not in kernel.writes for kernel in program.kernels)


def normalised(small: Small, x: str, monoid: str, name: str) -> str:
    """x[b, i] / reduced[b]"""
    total = small.reduce(monoid, x, over=1)
    over = axes(small.shape(x))
    value = Op("div", (at(x, *over), at(total, over[0])))
    return small.add(name, stage(over, small.temp(small.shape(x)), value))


def test_a_row_divided_by_its_own_norm() -> None:
    small = Small()
    x = small.input(4, 300)
    normalised(small, x, "sum", "div")
    program = step(small.program(), "fuse k0 and k1")
    assert only(program) == "row"
    (reduced, divided) = program.kernels[0].spec.stages  # type: ignore[union-attr]
    assert isinstance(reduced.body, Reduce) and reduced.body.axes[0] in divided.axes


def test_abs_mean_div_becomes_one_row() -> None:
    small = Small()
    x = small.input(4, 300)
    a = small.map("abs", x)
    mean = small.map("mul", small.reduce("sum", a, over=1), number(1 / 300))
    over = axes(small.shape(x))
    small.add("div", stage(over, small.temp(small.shape(x)), Op("div", (at(x, *over), at(mean, over[0])))))
    program = small.program()
    for line in ("fuse k0 and k1", "fuse k0 and k2", "fuse k0 and k3"):
        program = step(program, line)
    assert only(program) == "row"


def test_a_root_mean_square_norm_over_channels() -> None:
    small = Small()
    x = small.input(2, 12, 4, 4)
    n, c, h, w = axes(small.shape(x))
    square = small.map("mul", x, at(x, n, c, h, w))
    mean = small.add(
        "mean",
        stage((n, h, w), small.temp((n.extent, h.extent, w.extent)), Reduce("sum", (c,), (at(square, n, c, h, w),))),
    )
    rms = small.map("sqrt", small.map("add", mean, number(1e-5)))
    value = Op("div", (at(x, n, c, h, w), at(rms, n, h, w)))
    small.add("div", stage((n, c, h, w), small.temp(small.shape(x)), value))
    program = small.program()
    for line in ("fuse k0 and k1", "fuse k0 and k2", "fuse k0 and k3", "fuse k0 and k4"):
        program = step(program, line)
    assert only(program) == "row"


def test_statistics_over_a_flattened_view_meet_the_four_axes_of_the_tensor() -> None:
    """Group norm as captured: moments over a flat group, then a normalisation over n, c, h, w."""
    small = Small()
    x = small.input(2, 6, 4, 5)
    n, group, flat = Axis("i0", Index.of(2)), Axis("i1", Index.of(3)), Axis("r0", Index.of(40))
    place = Index.of(flat)
    channel = Index.of(group) * 2 + place // 20
    source = Load(x, (Index.of(n), channel, place // 5 % 4, place % 5))
    mean = small.temp((n.extent, group.extent))
    small.add("mean", stage((n, group), mean, Reduce("moments", (flat,), (source,), 0)))
    over = axes(small.shape(x), "a")
    value = Op("sub", (at(x, *over), at(mean, over[0], Index.of(over[1]) // 2)))
    small.add("sub", stage(over, small.temp(small.shape(x)), value))
    program = step(small.program(), "fuse k0 and k1")
    assert only(program) == "row"


def test_a_view_between_two_kernels_is_an_index_map() -> None:
    small = Small()
    x = small.input(4, 6)
    t0 = small.map("exp", x)
    over = axes((Index.of(24),))
    flat = Index.of(over[0])
    value = Op("tanh", (Load(t0, (3 - flat // 6, flat % 6)),))
    small.add("tanh", stage(over, small.temp((Index.of(24),)), value))
    assert only(step(small.program(), "fuse k0 and k1")) == "pointwise"


def test_padding_becomes_a_select() -> None:
    small = Small()
    t0 = small.map("exp", small.input(6))
    (i,) = axes((Index.of(8),))
    inner = Index.of(i) - 1
    small.add("pad", stage((i,), small.temp((Index.of(8),)), Load(t0, (inner,), (inner, 5 - inner), -1.0)))
    program = step(small.program(), "fuse k0 and k1")
    (only_stage,) = program.kernels[0].spec.stages  # type: ignore[union-attr]
    assert isinstance(only_stage.body, Select)


def test_a_concatenation_is_read_through_selects() -> None:
    small = Small()
    x, y = small.input(3, 4), small.input(5, 4)
    joined = small.temp((Index.of(8), Index.of(4)))
    a, b, j = Axis("a", Index.of(3)), Axis("b", Index.of(5)), Axis("j", Index.of(4))
    small.add(
        "cat",
        Stage((a, j), joined, (Index.of(a), Index.of(j)), at(x, a, j)),
        Stage((b, j), joined, (Index.of(b) + 3, Index.of(j)), at(y, b, j)),
    )
    small.reduce("sum", joined, over=1)
    program = step(small.program(), "fuse k0 and k1")
    assert only(program) in ("row", "pointwise")


def test_a_scan_and_what_surrounds_it() -> None:
    from mtmc.ir.expr import Scan

    small = Small()
    t0 = small.map("abs", small.input(3, 50))
    i, j = axes(small.shape(t0))
    t1 = small.add("cumsum", stage((i, j), small.temp(small.shape(t0)), Scan("sum", j, at(t0, i, j))))
    small.map("mul", t1, number(2.0))
    program = step(step(small.program(), "fuse k0 and k1"), "fuse k0 and k2")
    assert only(program) == "scan"


def test_two_readers_of_one_buffer_share_a_loop() -> None:
    small = Small()
    x = small.input(6, 200)
    top, total = small.reduce("max", x, over=1), small.reduce("sum", x, over=1)
    program = step(small.program(top, total), "fuse k0 and k1")
    assert only(program) == "row"
    assert program.kernels[0].writes == (top, total)


def test_the_kernel_moves_to_where_its_inputs_are_ready() -> None:
    small = Small()
    x = small.input(4, 8)
    t0 = small.map("exp", x)
    t1 = small.map("tanh", x)
    over = axes(small.shape(x))
    small.add("add", stage(over, small.temp(small.shape(x)), Op("add", (at(t0, *over), at(t1, *over)))))
    program = step(small.program(), "fuse k0 and k2")
    assert [kernel.id for kernel in program.kernels] == ["k1", "k0"]


def test_a_path_through_another_kernel_forbids_fusion() -> None:
    small = Small()
    t0 = small.reduce("sum", small.input(4, 300), over=1)
    t1 = small.map("exp", t0)
    (i,) = axes(small.shape(t0))
    small.add("add", stage((i,), small.temp(small.shape(t0)), Op("add", (at(t0, i), at(t1, i)))))
    with pytest.raises(IllegalAction, match="wait for each other"):
        apply(small.program(), Action("fuse", ("k0", "k2")))


def test_a_tuned_schedule_survives_an_epilogue() -> None:
    small = Small()
    small.map("maximum", small.linear(small.input(256, 128), 256), number(0.0))
    program = step(small.program(), "tile k0 to 64x64x32 with 4 warps and 4 stages")
    program = step(program, "fuse k0 and k1")
    assert isinstance(program.kernels[0].impl, Tile)
    assert program.kernels[0].impl.schedule.tile == (64, 64, 32)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("k0", "k0", "with itself"),
        ("k1", "k0", "name the producer first"),
        ("k0", "k9", "no kernel"),
        ("k1", "k2", "can't be one kernel"),
        ("k2", "k3", "opaque"),
    ],
)
def test_illegal_fusions_say_why(first: str, second: str, reason: str) -> None:
    small = Small()
    t2 = small.linear(small.softmax(small.map("tanh", small.input(4, 64))), 8)
    program = small.program(t2)
    opaque = program.kernels[0].__class__("k3", Opaque(), "mystery", program.kernels[0].calls)
    program = Program(program.buffers, (*program.kernels, opaque), program.outputs)
    with pytest.raises(IllegalAction, match=reason):
        apply(program, Action("fuse", (first, second)))


def test_equal_pairs_are_fused_together() -> None:
    small = Small()
    results = []
    for _ in range(3):
        results.append(small.map("tanh", small.map("exp", small.input(4, 8))))
    program = small.program(*results)
    after = step(program, "fuse k0 and its 2 equals (exp, line 10) and k1 and its 2 equals (tanh, line 11)")
    assert [kernel.id for kernel in after.kernels] == ["k0", "k2", "k4"]
    assert all(isinstance(kernel.spec, Stages) and len(kernel.spec.stages) == 1 for kernel in after.kernels)


def test_half_precision_producers_are_inlined_too() -> None:
    small = Small(DType.BF16)
    small.map("exp", small.map("tanh", small.input(4, 8)))
    assert only(step(small.program(), "fuse k0 and k1")) == "pointwise"
