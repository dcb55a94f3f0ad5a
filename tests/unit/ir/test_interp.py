"""The interpreter against numpy written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from mtmc.errors import IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, IndexValue, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Axis, Dim, Index, contiguous_strides
from mtmc.ir.interp import round_bfloat16, run
from mtmc.ir.program import Buffer, Call, Kernel, Opaque, Program, Ref, Role, Stages, Update
from mtmc.ir.types import DType
from tests.strategies import programs, values

I = Index.of  # noqa: E741
i, j = Axis("i", I(4)), Axis("j", I(6))
RNG = np.random.default_rng(0)


def load(name: str, *index: Any) -> Load:
    return Load(name, tuple(sub if isinstance(sub, Expr) else I(sub) for sub in index))


def given_buffer(name: str, shape: tuple[Any, ...], dtype: DType = DType.F32, role: Role = Role.INPUT) -> Buffer:
    sizes = tuple(map(I, shape))
    return Buffer(name, dtype, sizes, contiguous_strides(sizes), role)


def make(
    inputs: dict[str, np.ndarray],
    *stages: Stage,
    shapes: dict[str, Any],
    dtypes: dict[str, DType] | None = None,
) -> Program:
    kinds = {"float32": DType.F32, "float64": DType.F64, "int64": DType.I64, "bool": DType.BOOL}
    kinds |= {"float16": DType.F16}
    buffers = [given_buffer(name, value.shape, kinds[value.dtype.name]) for name, value in inputs.items()]
    dtypes = dtypes or {}
    buffers += [Buffer.temp(name, dtypes.get(name, DType.F32), tuple(map(I, shape))) for name, shape in shapes.items()]
    return Program(tuple(buffers), (Kernel("k0", Stages(stages), "test"),), (stages[-1].target,))


def evaluate(
    inputs: dict[str, np.ndarray],
    *stages: Stage,
    shapes: dict[str, Any],
    precision: Any = "float64",
    **options: Any,
) -> np.ndarray:
    return run(make(inputs, *stages, shapes=shapes, **options), inputs, precision=precision)[stages[-1].target]


def at(axes: tuple[Axis, ...], target: str, body: Expr) -> Stage:
    return Stage(axes, target, tuple(map(I, axes)), body)


X = RNG.standard_normal((4, 6)).astype(np.float32)


def test_softmax() -> None:
    shifted = Op("exp", (Op("sub", (load("x", i, j), load("m", i))),))
    y = evaluate(
        {"x": X},
        at((i,), "m", Reduce("maxsumexp", (j,), (load("x", i, j),), 0)),
        at((i,), "s", Reduce("maxsumexp", (j,), (load("x", i, j),), 1)),
        at((i, j), "y", Op("div", (shifted, load("s", i)))),
        shapes={"m": (4,), "s": (4,), "y": (4, 6)},
    )
    e = np.exp(X.astype(np.float64))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-12)


def test_layer_norm_by_moments() -> None:
    mean, m2, count = (Reduce("moments", (j,), (load("x", i, j),), part) for part in range(3))
    body = Op("div", (Op("sub", (load("x", i, j), load("mean", i))), Op("sqrt", (load("var", i),))))
    y = evaluate(
        {"x": X},
        at((i,), "mean", mean),
        at((i,), "var", Op("div", (m2, count))),
        at((i, j), "y", body),
        shapes={"mean": (4,), "var": (4,), "y": (4, 6)},
    )
    wide = X.astype(np.float64)
    np.testing.assert_allclose(y, (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True), rtol=1e-12)


def test_partial_moments_and_partial_max_sum_exp_combine() -> None:
    split, inner = Axis("s", I(2)), Axis("r", I(3))
    part = load("x", i, I(split) * 3 + inner)
    stages, shapes = [], {}
    for monoid, width in (("moments", 3), ("maxsumexp", 2)):
        for p in range(width):
            stages.append(at((i, split), f"{monoid}{p}", Reduce(monoid, (inner,), (part,), p)))
            shapes[f"{monoid}{p}"] = (4, 2)
        args = tuple(load(f"{monoid}{p}", i, split) for p in range(width))
        for p in range(width):
            stages.append(at((i,), f"{monoid}_{p}", Reduce(monoid, (split,), args, p)))
            shapes[f"{monoid}_{p}"] = (4,)
    found = run(make({"x": X}, *stages, shapes=shapes), {"x": X})
    wide = X.astype(np.float64)
    np.testing.assert_allclose(found["moments_0"], wide.mean(1), rtol=1e-12)
    np.testing.assert_allclose(found["moments_1"], wide.var(1) * 6, rtol=1e-12)
    np.testing.assert_array_equal(found["moments_2"], np.full(4, 6))
    np.testing.assert_array_equal(found["maxsumexp_0"], wide.max(1))
    np.testing.assert_allclose(found["maxsumexp_1"], np.exp(wide - wide.max(1, keepdims=True)).sum(1), rtol=1e-12)


def test_argmax_takes_the_first_and_nan_wins() -> None:
    x = np.array([[1, 3, 3, 0], [5, 5, 5, 5], [1, np.nan, 9, np.nan], [-np.inf] * 4], dtype=np.float32)
    k = Axis("k", I(4))
    for monoid, wanted in (("argmax", [1, 0, 1, 0]), ("argmin", [3, 0, 1, 0])):
        body = Reduce(monoid, (k,), (load("x", i, k),), 1)
        got = evaluate({"x": x}, at((i,), "y", body), shapes={"y": (4,)}, dtypes={"y": DType.I64})
        np.testing.assert_array_equal(got, wanted)
    given_positions = Reduce("argmax", (k,), (load("x", i, k), IndexValue(100 - I(k))), 1)
    got = evaluate({"x": x}, at((i,), "y", given_positions), shapes={"y": (4,)}, dtypes={"y": DType.I64})
    np.testing.assert_array_equal(got, [98, 97, 97, 97])  # of equal values the smallest given position


def test_argmax_over_two_axes_is_a_flat_position() -> None:
    body = Reduce("argmax", (i, j), (load("x", i, j),), 1)
    got = evaluate({"x": X}, at((), "y", body), shapes={"y": ()}, dtypes={"y": DType.I64})
    assert got.shape == () and got == X.argmax()


def test_max_and_min_propagate_nan() -> None:
    x = X.copy()
    x[1, 2] = np.nan
    for monoid, wanted in (("max", x.max(1)), ("min", x.min(1))):
        got = evaluate({"x": x}, at((i,), "y", Reduce(monoid, (j,), (load("x", i, j),))), shapes={"y": (4,)})
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("monoid", "numpy"), [("sum", np.add), ("prod", np.multiply), ("max", np.maximum), ("min", np.minimum)]
)
@pytest.mark.parametrize("axis", [i, j])
def test_scan_runs_along_its_axis(monoid: str, numpy: np.ufunc, axis: Axis) -> None:
    got = evaluate({"x": X}, at((i, j), "y", Scan(monoid, axis, load("x", i, j))), shapes={"y": (4, 6)})
    wanted = numpy.accumulate(X.astype(np.float64), axis=(i, j).index(axis))
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_predicates_on_a_reduction() -> None:
    """Row sums, row maxima and first positions of the lower triangle."""
    x = np.abs(RNG.standard_normal((4, 4))).astype(np.float32)
    k = Axis("k", I(4))
    lower = (I(i) - k,)
    masked = np.where(np.tri(4, dtype=bool), x.astype(np.float64), np.nan)
    for monoid, wanted in (("sum", np.nansum(masked, 1)), ("min", np.nanmin(masked, 1))):
        got = evaluate(
            {"x": x}, at((i,), "y", Reduce(monoid, (k,), (load("x", i, k),), when=lower)), shapes={"y": (4,)}
        )
        np.testing.assert_allclose(got, wanted, rtol=1e-12)
    count = Reduce("moments", (k,), (load("x", i, k),), 2, lower)
    np.testing.assert_array_equal(evaluate({"x": x}, at((i,), "y", count), shapes={"y": (4,)}), [1, 2, 3, 4])
    none = Reduce("sum", (k,), (load("x", i, k),), when=(I(-1),))
    np.testing.assert_array_equal(evaluate({"x": x}, at((i,), "y", none), shapes={"y": (4,)}), np.zeros(4))


def test_matmul_batched_and_transposed() -> None:
    a = RNG.standard_normal((3, 5, 7)).astype(np.float32)
    b = RNG.standard_normal((3, 4, 7)).astype(np.float32)
    n, m, o, k = (Axis(*item) for item in zip("nmok", map(I, (3, 5, 4, 7)), strict=True))
    body = Contract((k,), ((load("a", n, m, k), load("b", n, o, k)),))
    wanted = np.einsum("nmk,nok->nmo", a.astype(np.float64), b.astype(np.float64))
    got = evaluate({"a": a, "b": b}, at((n, m, o), "y", body), shapes={"y": (3, 5, 4)})
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    swapped = Stage((o, n, m), "y", (I(n), I(m), I(o)), body)
    got = evaluate({"a": a, "b": b}, swapped, shapes={"y": (3, 5, 4)})
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_contract_terms_add_up_and_an_axis_of_one_side_is_summed() -> None:
    a = RNG.standard_normal((4, 6)).astype(np.float32)
    b = RNG.standard_normal(6).astype(np.float32)
    terms = ((load("a", i, j), load("b", j)), (load("a", i, j), Const(2.0, DType.F32)))
    got = evaluate({"a": a, "b": b}, at((i,), "y", Contract((j,), terms)), shapes={"y": (4,)})
    wide = a.astype(np.float64)
    np.testing.assert_allclose(got, wide @ b.astype(np.float64) + 2 * wide.sum(1), rtol=1e-10)
    ones = Contract((j,), ((Const(1.0, DType.F32), Const(3.0, DType.F32)),))
    np.testing.assert_array_equal(evaluate({"a": a}, at((i,), "y", ones), shapes={"y": (4,)}), np.full(4, 18.0))


def test_convolution_by_windows_with_padding() -> None:
    x = RNG.standard_normal((2, 3, 5, 6)).astype(np.float32)
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
    n, o, h, v, c, p, q = (Axis(*item) for item in zip("nohvcpq", map(I, (2, 4, 3, 6, 3, 3, 3)), strict=True))
    row, column = I(h) * 2 + p - 1, I(v) + q - 1
    window = Load("x", (I(n), I(c), row, column), (row, 4 - row, column, 5 - column))
    body = Contract((c, p, q), ((window, load("w", o, c, p, q)),))
    got = evaluate({"x": x, "w": w}, at((n, o, h, v), "y", body), shapes={"y": (2, 4, 3, 6)})
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((2, 4, 3, 6))
    for a in range(3):
        for b in range(3):
            patch = padded[:, :, a : a + 5 : 2, b : b + 6]
            wanted += np.einsum("nchw,oc->nohw", patch, w[:, :, a, b].astype(np.float64))
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_gather_and_scatter() -> None:
    table = RNG.standard_normal((10, 6)).astype(np.float32)
    which = np.array([3, 3, 9, 0])
    body = load("t", load("p", i), j)
    got = evaluate({"t": table, "p": which}, at((i, j), "y", body), shapes={"y": (4, 6)})
    np.testing.assert_array_equal(got, table[which])
    added = Stage((i, j), "y", (I(j),), load("x", i, j), accumulate="add")
    np.testing.assert_allclose(evaluate({"x": X}, added, shapes={"y": (6,)}), X.sum(0), rtol=1e-5)
    largest = Stage((i, j), "y", (), Op("abs", (load("x", i, j),)), accumulate="max")
    assert evaluate({"x": X}, largest, shapes={"y": ()}) == np.abs(X).max()


def test_concatenation_is_two_stores_and_gaps_show_as_nan() -> None:
    first = Stage((i, j), "y", (I(i), I(j)), load("x", i, j))
    second = Stage((i, j), "y", (I(i), I(j) + 6), Op("neg", (load("x", i, j),)))
    got = evaluate({"x": X}, first, second, shapes={"y": (4, 13)})
    np.testing.assert_array_equal(got[:, :12], np.concatenate([X, -X], 1))
    assert np.isnan(got[:, 12]).all()


def test_select_sides_may_be_out_of_range_where_they_are_not_taken() -> None:
    roll = Select((I(j) - 2,), load("x", i, I(j) - 2), load("x", i, I(j) + 4))
    np.testing.assert_array_equal(
        evaluate({"x": X}, at((i, j), "y", roll), shapes={"y": (4, 6)}), np.roll(X, 2, axis=1)
    )
    with pytest.raises(IRError, match=r"k0 .*index -2 of 'x' leaves dimension 1"):
        evaluate({"x": X}, at((i, j), "y", load("x", i, I(j) - 2)), shapes={"y": (4, 6)})


def test_stage_predicate_leaves_the_rest_alone() -> None:
    every = at((i, j), "y", Const(0.0, DType.F32))
    some = replace(at((i, j), "y", load("x", i, j)), when=(I(i) - j,))
    got = evaluate({"x": X}, every, some, shapes={"y": (4, 6)})
    np.testing.assert_array_equal(got, np.tril(X))


# ---- precision, guards, opaque kernels, dims ---------------------------------------------------------------


def test_storage_precision_rounds_on_store_only() -> None:
    x = (RNG.standard_normal((4, 6)) * 100).astype(np.float16)
    tiny = Op("mul", (Op("add", (load("x", i, j), Const(0.01, DType.F32))), Const(3.0, DType.F32)))
    got = evaluate({"x": x}, at((i, j), "y", tiny), shapes={"y": (4, 6)}, dtypes={"y": DType.F16}, precision="storage")
    assert got.dtype == np.float16
    wanted = (x.astype(np.float32) + np.float32(0.01)) * np.float32(3.0)
    np.testing.assert_array_equal(got, wanted.astype(np.float16))
    exact = evaluate({"x": x}, at((i, j), "y", tiny), shapes={"y": (4, 6)}, dtypes={"y": DType.F16})
    assert exact.dtype == np.float64 and (exact != got).any()


def test_a_cast_rounds_in_storage_precision() -> None:
    split = Op("sub", (load("x", i, j), Cast(DType.F16, load("x", i, j))))
    low = evaluate({"x": X}, at((i, j), "y", split), shapes={"y": (4, 6)}, precision="storage")
    np.testing.assert_array_equal(low, X - X.astype(np.float16).astype(np.float32))
    assert np.abs(low).max() > 0
    whole = Cast(DType.I64, Op("mul", (load("x", i, j), Const(3.0, DType.F32))))
    got = evaluate({"x": X}, at((i, j), "y", whole), shapes={"y": (4, 6)}, dtypes={"y": DType.I64})
    np.testing.assert_array_equal(got, np.trunc(X.astype(np.float64) * 3).astype(np.int64))


def test_bfloat16_rounds_to_nearest_even() -> None:
    ulp = 2.0**-7  # of bfloat16 at 1
    x = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 0.51 * ulp, -1 - 0.49 * ulp, np.inf, np.nan, 3.4e38])
    wanted = np.array([1, 1 + 2 * ulp, 1 + ulp, -1, np.inf, np.nan, np.inf], dtype=np.float32)
    np.testing.assert_array_equal(round_bfloat16(x.astype(np.float32)), wanted)


def guarded(flag: float) -> np.ndarray:
    plain = Kernel("k0", Stages((at((i, j), "y", load("x", i, j)),)), "copy")
    other = Kernel("k1", Stages((at((i, j), "y", Op("neg", (load("x", i, j),))),)), "neg", guard="f")
    buffers = (given_buffer("x", (4, 6)), given_buffer("f", (1,)), Buffer.temp("y", DType.F32, (I(4), I(6))))
    return run(Program(buffers, (plain, other), ("y",)), {"x": X, "f": np.array([flag])})["y"]


def test_a_guarded_kernel_replaces_only_where_its_flag_is_set() -> None:
    np.testing.assert_array_equal(guarded(0.0), X)
    np.testing.assert_array_equal(guarded(1.0), -X)


def opaque() -> Program:
    call = Call("aten.frob.default", (Ref("x"), 2), (), ("y", None))
    kernel = Kernel("k0", Opaque(), "frob", (call,), lines=(7,), exports=("y",))
    state = given_buffer("s", (4, 6), role=Role.STATE)
    buffers = (given_buffer("x", (4, 6)), state, Buffer.temp("y", DType.F16, (I(4), I(6))))
    return Program(buffers, (kernel,), ("y",), (Update("s", "y"),))


def test_opaque_kernels_go_through_the_callback_and_updates_apply() -> None:
    seen: list[str] = []

    def library(kernel: Kernel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.extend([kernel.id, *inputs])
        return {"y": inputs["x"] * 3}

    given_values = {"x": X, "s": np.zeros((4, 6))}
    found = run(opaque(), given_values, library, "storage")
    assert seen == ["k0", "x"]
    np.testing.assert_array_equal(found["y"], (X * 3).astype(np.float16))
    np.testing.assert_array_equal(found["s"], found["y"].astype(np.float32))
    assert not given_values["s"].any()  # what the caller gave stays as it was
    with pytest.raises(IRError, match=r"k0 \(frob, line 7\)"):
        run(opaque(), given_values)
    with pytest.raises(IRError, match="gave no 'y'"):
        run(opaque(), given_values, lambda kernel, inputs: {})


def test_missing_values_and_wrong_shapes_are_named() -> None:
    program = make({"x": X}, at((i, j), "y", load("x", i, j)), shapes={"y": (4, 6)})
    with pytest.raises(IRError, match="no value for input 'x'"):
        run(program, {})
    with pytest.raises(IRError, match=r"'x' has shape \(6, 4\)"):
        run(program, {"x": X.T})


def test_declared_dims_come_from_shapes_or_by_name() -> None:
    batch = Dim("B", 64)
    b = Axis("b", I(batch) * 2)
    body = load("x", I(b) // 2, I(b) % 2)
    buffers = (given_buffer("x", (batch, 2)), Buffer.temp("y", DType.F32, (I(batch) * 2,)))
    program = Program(buffers, (Kernel("k0", Stages((at((b,), "y", body),)), "flatten"),), ("y",))
    for size in (1, 3):
        x = RNG.standard_normal((size, 2)).astype(np.float32)
        np.testing.assert_array_equal(run(program, {"x": x})["y"], x.reshape(-1))
    with pytest.raises(IRError, match="declares"):
        run(program, {"x": RNG.standard_normal((3, 2)), "B": 2})


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_random_program_runs_and_the_two_precisions_agree(program: Program) -> None:
    inputs = values(program, seed=1)
    exact, stored = (run(program, inputs, precision=p)[program.outputs[0]] for p in ("float64", "storage"))
    assert exact.shape == stored.shape
    assert np.isfinite(exact).all()
    if program.dtype(program.outputs[0]).is_float and program.dtype("x0") is DType.F32:
        scale = max(1.0, float(np.abs(exact).max(initial=0.0)))
        assert np.abs(exact - stored).max(initial=0.0) <= 1e-4 * scale
