"""The printed Program: goldens of whole programs, and the text of single constructs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from mtmc.ir.expr import Cast, Const, Contract, Expr, IndexValue, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Axis, Dim, Index, contiguous_strides
from mtmc.ir.printer import conditions, label, print_kernel, print_program, print_stage
from mtmc.ir.program import (
    Buffer,
    Call,
    Kernel,
    Opaque,
    Program,
    Ref,
    Role,
    Source,
    Stages,
    Tile,
    Token,
    Update,
)
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from tests.strategies import programs

I = Index.of  # noqa: E741
F = DType.F32
i, j, k = (Axis(name, I(8)) for name in "ijk")
x = Load("x", (I(i), I(j)))
one, two = Const(1.0, F), Const(2, F)


def buffer(name: str, shape: tuple[int, ...], role: Role = Role.TEMP, source: str = "") -> Buffer:
    sizes = tuple(map(I, shape))
    return Buffer(name, F, sizes, contiguous_strides(sizes), role, source)


def linear_and_max() -> Program:
    """The example of DESIGN section 3, as captured."""
    m, n, d = Axis("m", I(1024)), Axis("n", I(8192)), Axis("k", I(8192))
    product = Contract((d,), ((Load("x", (I(m), I(d))), Load("p_fc_weight", (I(n), I(d)))),))
    body = Op("add", (product, Load("p_fc_bias", (I(n),))))
    call = Call("aten.linear.default", (Ref("x"), Ref("p_fc_weight"), Ref("p_fc_bias")), (), ("t0",))
    first = Kernel("k0", Stages((Stage((m, n), "t0", (I(m), I(n)), body),)), "linear", (call,), lines=(15,))
    row = Reduce("max", (n,), (Load("t0", (I(m), I(n))),))
    call = Call("aten.amax.default", (Ref("t0"), (I(1),)), (), ("t1",))
    second = Kernel("k1", Stages((Stage((m,), "t1", (I(m),), row),)), "amax", (call,), lines=(20,))
    buffers = (
        buffer("x", (1024, 8192), Role.INPUT, "0"),
        buffer("p_fc_weight", (8192, 8192), Role.PARAMETER, "fc.weight"),
        buffer("p_fc_bias", (8192,), Role.PARAMETER, "fc.bias"),
        buffer("t0", (1024, 8192)),
        buffer("t1", (1024,)),
    )
    return Program(buffers, (first, second), ("t1",))


def test_captured(golden: Callable[[str, str], None]) -> None:
    golden("captured", print_program(linear_and_max(), buffers=True))


def test_generated(golden: Callable[[str, str], None]) -> None:
    program = linear_and_max()
    first, second = program.kernels
    matmul = Schedule("matmul", (128, 128, 64), warps=8, stages=3, group=8)
    rows = Schedule("row", (1, 4096), loop=True, warps=8, order=1)
    program = program.replace_kernel("k0", replace(first, impl=Tile(matmul), lines=(15, 20)))
    program = program.replace_kernel("k1", replace(second, impl=Tile(rows)))
    golden("generated", print_program(program))


def test_locals_updates_guards_and_sources(golden: Callable[[str, str], None]) -> None:
    softmax = Stages(
        (
            Stage((i,), "m", (I(i),), Reduce("maxsumexp", (j,), (x,), 0)),
            Stage((i,), "s", (I(i),), Reduce("maxsumexp", (j,), (x,), 1)),
            Stage(
                (i, j), "y", (I(i), I(j)),
                Op("div", (Op("exp", (Op("sub", (x, Load("m", (I(i),)))),)), Load("s", (I(i),)))),
            ),
        ),
        ("m", "s"),
    )  # fmt: skip
    fix = Stages((Stage((i, j), "y", (I(i), I(j)), Op("neg", (x,))),))
    total = Stages((Stage((i, j), "t", (I(j),), Load("y", (I(i), I(j))), "add"),))
    drop = Call("aten.dropout.default", (Ref("t"), 0.5, True), (), ("d",))
    kernels = (
        Kernel("k0", softmax, "softmax", impl=Tile(Schedule("row", (4, 8), warps=1)), lines=(4,)),
        Kernel("k1", fix, "neg", impl=Tile(Schedule("pointwise", (256,))), guard="f"),
        Kernel("k2", total, "sum", impl=Source("import triton\n\ndef total(y, t):\n    ...\n", "total")),
        Kernel("k3", Opaque(("random",)), "dropout", (drop,), lines=(7, 9), exports=("d",)),
    )
    buffers = (
        buffer("x", (8, 8), Role.INPUT, "0"),
        buffer("f", (1,), Role.CONSTANT, "torch.tensor(1.0)"),
        buffer("mean", (8,), Role.STATE, "bn.running_mean"),
        *(buffer(name, (8, 8)) for name in "y"),
        *(buffer(name, (8,)) for name in ("m", "s", "t", "d")),
    )
    program = Program(buffers, kernels, ("y", "d"), (Update("mean", "t"),), launch="graph")
    golden("mixed", print_program(program))


def text(body: Expr, **fields: Any) -> str:
    buffers = [buffer("x", (8, 8), Role.INPUT), buffer("p", (8,), Role.INPUT), buffer("y", (8, 8))]
    stage = Stage((i, j), "y", (I(i), I(j)), body, **fields)
    kernel = Kernel("k0", Stages((stage,)), "test")
    return print_stage(Program(tuple(buffers), (kernel,), ("y",)), kernel, stage).removeprefix("y[i, j] ")


PLUS = Op("add", (x, one))
DOT = Contract((k,), ((Load("x", (I(i), I(k))), Load("x", (I(k), I(j)))),))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (PLUS, "= x[i, j] + 1"),
        (Op("mul", (PLUS, two)), "= (x[i, j] + 1) * 2"),
        (Op("sub", (one, Op("sub", (one, two)))), "= 1 - (1 - 2)"),
        (Op("sub", (Op("sub", (one, one)), two)), "= 1 - 1 - 2"),
        (Op("div", (one, Op("mul", (x, two)))), "= 1 / (x[i, j] * 2)"),
        (Op("neg", (PLUS,)), "= -(x[i, j] + 1)"),
        (Op("pow", (Op("neg", (x,)), two)), "= (-x[i, j]) ** 2"),
        (Op("maximum", (x, Const(0.5, F))), "= max(x[i, j], 0.5)"),
        (Op("where", (Op("lt", (x, one)), x, one)), "= where(x[i, j] < 1, x[i, j], 1)"),
        (Op("logical_not", (Op("eq", (x, one)),)), "= not x[i, j] == 1"),
        (Cast(DType.F16, x), "= float16(x[i, j])"),
        (IndexValue(I(i) * 8 + j), "= i * 8 + j"),
        (Op("mul", (IndexValue(I(i) + 1), two)), "= (i + 1) * 2"),
        (Const(float("-inf"), F), "= -inf"),
        (Load("x", (I(i), Load("p", (I(j),)))), "= x[i, p[j]]"),
        (Load("x", (I(i), I(j) - 1), (I(j) - 1,)), "= x[i, j - 1] or 0"),
        (Load("x", (I(i), I(j)), (I(i) - j,), 2.0), "= x[i, j] if i >= j else 2"),
        (Op("add", (Load("x", (I(i), I(j) - 1), (I(j) - 1,)), one)), "= (x[i, j - 1] or 0) + 1"),
        (Select((I(i) - j,), x, one), "= x[i, j] if i >= j else 1"),
        (Reduce("sum", (k,), (Load("x", (I(i), I(k))),)), "= sum_k(x[i, k])"),
        (Reduce("max", (j, k), (x,), when=(I(j) - k,)), "= max_{j,k}(x[i, j] where j >= k)"),
        (Reduce("argmax", (k,), (x,), 1), "= argmax_k(x[i, j])"),
        (Reduce("argmax", (k,), (x,), 0), "= argmax_k(x[i, j]).value"),
        (Reduce("moments", (k,), (x,), 1), "= moments_k(x[i, j]).m2"),
        (Scan("sum", j, x), "= cumsum_j(x[i, j])"),
        (Op("add", (DOT, one)), "= sum_k x[i, k] * x[k, j] + 1"),
        (Op("mul", (DOT, two)), "= (sum_k x[i, k] * x[k, j]) * 2"),
        (Contract((k,), ((x, one), (PLUS, two))), "= sum_k (x[i, j] * 1 + (x[i, j] + 1) * 2)"),
    ],
)
def test_expressions(body: Expr, wanted: str) -> None:
    assert text(body) == wanted


def test_stage_marks() -> None:
    assert text(x, accumulate="add") == "+= x[i, j]"
    assert text(x, accumulate="max") == "max= x[i, j]"
    assert text(x, when=(I(i) - j,)) == "= x[i, j]  where i >= j"


def test_conditions_have_no_minus_sign() -> None:
    b = Dim("B")
    assert conditions((I(i) - 1, 5 - I(i), I(i) - j - 2, 3 + I(i) - j)) == (
        "i >= 1 and i <= 5 and i >= j + 2 and i + 3 >= j"
    )
    assert conditions((I(b) - 1 - i,)) == "B >= i + 1"


def test_labels() -> None:
    program = replace(
        linear_and_max(),
        buffers=(
            *linear_and_max().buffers,
            buffer("c0", (1,), Role.CONSTANT, "torch.tensor(1.0)"),
            buffer("c1", (1,), Role.CONSTANT, "mask"),
        ),
    )
    assert label(program, "p_fc_weight") == "fc.weight"
    assert [label(program, name) for name in ("x", "t0", "c0", "c1", "inside")] == ["x", "t0", "c0", "mask", "inside"]


def test_library_calls_are_nested_and_keep_their_arguments() -> None:
    calls = (
        Call("aten.t.default", (Ref("p_fc_weight"),), (), ("v",), True),
        Call("aten.addmm.default", (Ref("p_fc_bias"), Ref("x"), Ref("v")), (("beta", 2.0),), ("u",)),
        Call("aten._to_copy.default", (Ref("u"),), (("dtype", Token("torch.float16")),), ("t0",)),
    )
    kernel = Kernel("k0", Opaque(), "linear", calls, lines=(3, 5), exports=("t0",))
    assert print_kernel(linear_and_max(), kernel).split("#")[0].rstrip() == (
        "k0 library  t0[1024, 8192] = aten._to_copy("
        "aten.addmm(fc.bias, x, aten.t(fc.weight), beta=2.0), dtype=torch.float16)"
    )
    assert print_kernel(linear_and_max(), kernel).endswith("# lines 3, 5")


def test_several_results() -> None:
    call = Call("aten.max.dim", (Ref("x"), I(1)), (), ("t1", None))
    kernel = Kernel("k0", Opaque(), "max", (call,), exports=("t1",))
    assert print_kernel(linear_and_max(), kernel) == "k0 library  t1[1024] = aten.max.dim(x, 1)"


def test_a_schedule_of_an_unknown_form_is_printed_by_its_tile() -> None:
    kernel = replace(linear_and_max().kernels[0], impl=Tile(Schedule("spiral", (4, 5), persistent=True)))
    head = print_kernel(linear_and_max(), kernel).splitlines()[0]
    assert head.split("#")[0].rstrip() == "k0 tile spiral  tile 4x5  4 warps  persistent"


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_random_program_prints_a_line_for_each_kernel_and_stage(program: Program) -> None:
    lines = print_program(program).splitlines()
    stages = sum(len(kernel.spec.stages) for kernel in program.kernels if isinstance(kernel.spec, Stages))
    assert len(lines) == len(program.kernels) + stages + 1
