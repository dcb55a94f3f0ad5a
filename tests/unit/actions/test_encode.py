"""Split-fp16 operands: as accurate as float32, guarded where the encoding can't hold a value."""

from __future__ import annotations

import numpy as np
import pytest

from mtmc.actions import Action, apply, parse, propose
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction
from mtmc.ir.check import check
from mtmc.ir.expr import Contract, Op
from mtmc.ir.forms import MatmulForm, match
from mtmc.ir.index import Axis, Index
from mtmc.ir.interp import run
from mtmc.ir.program import Program, Tile
from mtmc.ir.types import DType
from tests.unit.actions.small import Small, assert_same_meaning, at, number, stage, values

ENCODE = "encode the operands of k0 (linear, line 10) as split fp16"


def linear(m: int = 40, n: int = 24, k: int = 64, rounding: str = "exact") -> Program:
    small = Small()
    small.linear(small.input(m, k), n, rounding)
    return small.program()


def encoded(program: Program, line: str = ENCODE) -> Program:
    action = parse(line)
    assert parse(action.describe(program)) == action
    after = apply(program, action)
    check(after)
    return after


def flag_of(program: Program) -> str:
    (guarded,) = [kernel for kernel in program.kernels if kernel.guard]
    assert guarded.guard is not None
    return guarded.guard


def test_the_split_is_as_accurate_as_float32_and_no_flag_is_raised() -> None:
    before = linear()
    after = encoded(before)
    found = assert_same_meaning(before, after, 3e-6, precision="storage")
    assert found[flag_of(after)] == 0
    form = match(after, next(kernel for kernel in after.kernels if kernel.id == "k0"))
    assert isinstance(form, MatmulForm) and form.half and form.products == 3


@pytest.mark.parametrize("m", [1, 31, 32, 33, 96])
def test_any_number_of_rows(m: int) -> None:
    before = linear(m=m)
    assert_same_meaning(before, encoded(before), 3e-6, precision="storage")


def test_rows_of_very_different_size_keep_their_own_accuracy() -> None:
    before = linear()
    given = values(before)
    given["x0"] = given["x0"] * np.exp2(np.arange(40) * 2.0 - 40)[:, None]
    after = encoded(before)
    exact, found = run(before, given)["t0"], run(after, given, precision="storage")
    scale = np.abs(exact).max(axis=1, keepdims=True)
    assert np.max(np.abs(found["t0"] - exact) / scale) < 2e-6


@pytest.mark.parametrize("bad", [np.inf, np.nan, -np.inf])
def test_what_has_no_encoding_takes_the_full_range_path(bad: float) -> None:
    before = linear()
    given = values(before)
    given["x0"][3, 5] = bad
    after = encoded(before)
    found = assert_same_meaning(before, after, 1e-5, given, precision="storage")
    assert found[flag_of(after)] == 1


def test_columns_that_cancel_across_the_operands_take_the_full_range_path() -> None:
    before = linear()
    given = values(before)
    given["x0"][:, 7] *= 2.0**-60
    given["p0"][:, 7] *= 2.0**60
    after = encoded(before)
    found = assert_same_meaning(before, after, 1e-4, given, precision="storage")
    assert found[flag_of(after)] == 1


def test_zero_columns_need_no_other_path() -> None:
    before = linear()
    given = values(before)
    given["x0"][:, 7] = 0.0
    after = encoded(before)
    assert assert_same_meaning(before, after, 3e-6, given, precision="storage")[flag_of(after)] == 0


def test_a_batched_product_with_transposed_operand_and_epilogue() -> None:
    small = Small()
    x, w = small.input(3, 20, 32), small.input(3, 32, 12)
    b, m, n, k = (Axis(name, Index.of(size)) for name, size in (("b", 3), ("m", 20), ("n", 12), ("k", 32)))
    body = Op("maximum", (Contract((k,), ((at(x, b, m, k), at(w, b, k, n)),)), number(0.0)))
    small.add("bmm", stage((b, m, n), small.temp((b.extent, m.extent, n.extent)), body))
    before = small.program()
    after = encoded(before, "encode the operands of k0 as split fp16")
    assert_same_meaning(before, after, 3e-6, precision="storage")
    shapes = [tuple(e.constant for e in after.buffer(name).shape) for name in ("hi0", "hi1")]
    assert shapes == [(3, 20, 32), (3, 32, 12)]  # each stays contiguous along what it was
    after = encoded(before, "encode the operands of k0 as split fp16, K-major")
    assert_same_meaning(before, after, 3e-6, precision="storage")
    assert tuple(e.constant for e in after.buffer("hi1").shape) == (3, 12, 32)


@pytest.mark.parametrize("t", [64, 7])
def test_a_linear_layer_on_three_dimensions(t: int) -> None:
    small = Small()
    small.linear(small.input(2, t, 32), 12)
    before = small.program()
    assert_same_meaning(before, encoded(before), 3e-6, precision="storage")


def test_one_tensor_in_both_roles_is_encoded_once() -> None:
    small = Small()
    x = small.input(33, 32)
    m, n, k = (Axis(name, Index.of(size)) for name, size in (("m", 33), ("n", 33), ("k", 32)))
    body = Contract((k,), ((at(x, m, k), at(x, n, k)),))
    small.add("gram", stage((m, n), small.temp((m.extent, n.extent)), body))
    before = small.program()
    after = encoded(before, "encode the operands of k0 as split fp16")
    assert_same_meaning(before, after, 3e-6, precision="storage")
    assert len(after.kernels) == 4


def test_an_activation_after_the_encoding_is_fused_into_both_paths() -> None:
    small = Small()
    small.map("maximum", small.linear(small.input(40, 64), 24), number(0.0))
    before = small.program()
    after = apply(encoded(before), parse("fuse k0 and k1"))
    for given in (values(before), {**values(before), "x0": np.full((40, 64), np.inf)}):
        assert_same_meaning(before, after, 1e-5, given, precision="storage")
    assert len([kernel for kernel in after.kernels if kernel.guard]) == 1
    schedules = [k.impl.schedule for k in after.kernels if k.guard and isinstance(k.impl, Tile)]
    assert [schedule.dot for schedule in schedules] == ["ieee"]


def test_the_encoding_is_fused_with_what_comes_before() -> None:
    small = Small()
    small.linear(small.map("tanh", small.input(40, 64)), 24)
    before = small.program()
    after = encoded(before, "encode the operands of k1 as split fp16")
    assert_same_meaning(before, after, 3e-6, precision="storage")
    after = apply(after, parse("fuse k0 and k2"))
    assert_same_meaning(before, after, 3e-6, precision="storage")


def test_eleven_bits_where_the_reference_has_no_more() -> None:
    before = linear(rounding="tf32")
    after = encoded(before, "round the operands of k0 (linear, line 10) to fp16")
    assert_same_meaning(before, after, 2e-2, precision="storage")
    assert "lo0" not in after.table
    with pytest.raises(IllegalAction, match="24 bits"):
        apply(linear(), parse("round the operands of k0 to fp16"))


def test_the_product_can_be_split_along_k_after_the_encoding() -> None:
    before = linear(k=128)
    after = apply(encoded(before), parse("split the reduction of k0 across 4 programs"))
    assert_same_meaning(before, after, 3e-6, precision="storage")


def test_what_is_proposed() -> None:
    lines = [a.describe(linear()) for a in propose(linear(), H200).actions if a.kind == "encode"]
    assert lines == [ENCODE]  # both operands are K-major already
    after = encoded(linear())
    assert not [a for a in propose(after, H200).actions if a.kind == "encode"]


def test_illegal_encodings_say_why() -> None:
    for small, reason in ((Small(DType.F16), "float32"), (Small(), "no matrix product")):
        x = small.input(40, 64)
        small.linear(x, 24) if small.dtype is DType.F16 else small.map("exp", x)
        with pytest.raises(IllegalAction, match=reason):
            apply(small.program(), Action("encode", ("k0",), (("mode", "split"), ("layout", "kept"))))
