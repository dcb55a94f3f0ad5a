"""The index algebra against plain Python arithmetic."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtmc.errors import IRError
from mtmc.ir.expr import Contract, IndexValue, Load, Reduce, Select, Stage, free_axes, substitute
from mtmc.ir.index import (
    Axis,
    Dim,
    Index,
    contiguous_strides,
    delinearize,
    floordiv,
    linearize,
    mod,
    nonnegative,
)
from mtmc.ir.types import DType

I = Index.of  # noqa: E741
B = Dim("B", 64)


@st.composite
def expressions(draw: st.DrawFn, dynamic: bool = False) -> tuple[Index, str, dict[str, int]]:
    """A random index, the same as Python text, and the extents of its axes (and the value of its dim)."""
    sizes = {"x": draw(st.sampled_from((2, 3, 4, 8))), "y": draw(st.sampled_from((5, 6, 7)))}
    atoms = {name: I(Axis(name, I(size))) for name, size in sizes.items()}
    if dynamic:
        sizes["B"] = draw(st.integers(1, 6))
        atoms["B"] = I(B)
        atoms["z"] = I(Axis("z", I(B)))

    def build(depth: int) -> tuple[Index, str]:
        if depth == 0:
            name = draw(st.sampled_from((*atoms, "#")))
            if name != "#":
                return atoms[name], name
            value = draw(st.integers(-3, 9))
            return I(value), f"({value})"
        left, text = build(depth - 1)
        operator = draw(st.sampled_from(("+", "-", "*", "//", "%")))
        if operator in "+-":
            right, other = build(depth - 1)
            return (left + right if operator == "+" else left - right), f"({text} {operator} {other})"
        if operator == "*":
            scale = draw(st.integers(-2, 9))
            return left * scale, f"({text} * {scale})"
        divisor, by = (I(B), "B") if dynamic and draw(st.booleans()) else (I(d := draw(st.integers(1, 12))), str(d))
        value = left // divisor if operator == "//" else left % divisor
        return value, f"({text} {operator} {by})"

    return *build(draw(st.integers(1, 4))), sizes


def points(sizes: dict[str, int]) -> list[dict[str, int]]:
    ranges = {name: range(size) for name, size in sizes.items() if name != "B"}
    if "B" in sizes:
        ranges["z"] = range(sizes["B"])
    fixed = {"B": sizes["B"]} if "B" in sizes else {}
    return [dict(zip(ranges, values, strict=True)) | fixed for values in itertools.product(*ranges.values())]


def holds(index: Index, text: str, sizes: dict[str, int]) -> None:
    code = compile(text, "<index>", "eval")
    shown = compile(str(index), "<shown>", "eval")
    for env in points(sizes):
        wanted = eval(code, {}, env)
        assert index.evaluate(env) == wanted, (str(index), text, env)
        assert eval(shown, {}, env) == wanted, (str(index), text, env)
        assert index.lower.evaluate(env) <= wanted <= index.upper.evaluate(env), (str(index), text, env)
        if nonnegative(index):
            assert wanted >= 0, (str(index), env)


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_simplification_keeps_every_value(case: tuple[Index, str, dict[str, int]]) -> None:
    holds(*case)


@settings(max_examples=150, deadline=None)
@given(expressions(dynamic=True))
def test_simplification_keeps_every_value_with_a_dim(case: tuple[Index, str, dict[str, int]]) -> None:
    holds(*case)


@settings(max_examples=200, deadline=None)
@given(expressions(), st.integers(-2, 3), st.integers(0, 3))
def test_substitution_commutes_with_evaluation(case: tuple[Index, str, dict[str, int]], scale: int, shift: int) -> None:
    index, _, sizes = case
    x, w = Axis("x", I(sizes["x"])), Axis("w", I(4))
    moved = index.substitute({x: I(w) * scale + shift})
    for w_value, y_value in itertools.product(range(4), range(sizes["y"])):
        wanted = index.evaluate({"x": w_value * scale + shift, "y": y_value})
        assert moved.evaluate({"w": w_value, "y": y_value}) == wanted, (str(index), str(moved))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from((1, 2, 3, 4, 7, 8)), min_size=1, max_size=4), st.booleans())
def test_linearize_takes_delinearize_back(extents: list[int], dynamic: bool) -> None:
    shape = [I(extent) for extent in extents]
    if dynamic:
        shape[0] = I(B)
    total = I(1)
    for extent in shape:
        total = total * extent
    flat = I(Axis("f", total))
    parts = delinearize(flat, shape)
    assert linearize(parts, shape) == flat
    size = total.evaluate({"B": 3})
    seen = {tuple(part.evaluate({"f": f, "B": 3}) for part in parts) for f in range(size)}
    assert len(seen) == size


def test_normal_forms() -> None:
    x, y = I(Axis("x", I(8))), I(Axis("y", I(4)))
    assert (x * 4 + y) // 4 == x and (x * 4 + y) % 4 == y
    assert x // 4 * 4 + x % 4 == x
    assert x // 8 == I(0) and x % 8 == x
    assert x // 2 // 2 == x // 4
    assert x + y - y == x and (x - x).constant == 0
    assert (x * 6 + 4) // 4 == (x * 3 + 2) // 2
    assert hash(x + y) == hash(y + x) and x + y == y + x
    assert floordiv(I(-7), I(2)).constant == -4 and mod(I(-7), I(2)).constant == 1


def test_bounds_of_a_quotient_by_a_dim_are_not_taken_for_positive() -> None:
    x = I(Axis("x", I(10)))
    assert not nonnegative((x - 5) // I(B))
    assert nonnegative(I(B) * 10 - x - 1) and not nonnegative(I(B) - x)


def test_contiguous_strides() -> None:
    assert contiguous_strides((I(B), I(3), I(4))) == (I(12), I(4), I(1))
    assert contiguous_strides(()) == ()


# ---- expressions -------------------------------------------------------------------------------------------

i, j, k = (Axis(name, I(6)) for name in "ijk")


def test_free_axes_leave_out_what_is_bound() -> None:
    body = Reduce("sum", (k,), (Load("x", (I(i), I(k) + j)),), when=(I(j) - k,))
    assert free_axes(body) == {i, j}
    assert free_axes(Contract((k,), ((Load("a", (I(i), I(k))), Load("b", (I(k),))),))) == {i}
    gather = Load("x", (Load("p", (I(i),)),), when=(I(j),))
    assert free_axes(Select((I(k),), gather, IndexValue(I(i)))) == {i, j, k}


def test_substitute_reaches_maps_predicates_and_subscripts() -> None:
    other = Axis("o", I(3))
    body = Select((I(i) - 1,), Load("x", (Load("p", (I(i),)), I(i) + j), when=(3 - I(i),)), IndexValue(I(i)))
    got = substitute(body, {i: I(other) * 2})
    twice = I(other) * 2
    wanted = Select((twice - 1,), Load("x", (Load("p", (twice,)), twice + j), when=(3 - twice,)), IndexValue(twice))
    assert got == wanted and got.then.index[1] == twice + j  # type: ignore[union-attr]


def test_substitute_renames_bound_axes_but_maps_them_to_axes_only() -> None:
    body = Reduce("max", (k,), (Load("x", (I(i), I(k))),))
    renamed = substitute(body, {k: I(Axis("q", I(6)))})
    assert renamed == Reduce("max", (Axis("q", I(6)),), (Load("x", (I(i), I(Axis("q", I(6))))),))
    with pytest.raises(IRError, match="axis k is bound"):
        substitute(body, {k: I(j) + 1})


def test_a_stage_is_renamed_with_its_domain() -> None:
    stage = Stage((i, j), "y", (I(i), I(j)), IndexValue(I(i) * 6 + j, DType.I64), when=(I(i) - j,))
    flat = Axis("f", I(36))
    moved = stage.rename({i: I(flat) // 6, j: I(flat) % 6})
    assert moved.axes == (flat,) and moved.store == (I(flat) // 6, I(flat) % 6)
    assert moved.body == IndexValue(I(flat), DType.I64) and moved.when == (I(flat) // 6 - I(flat) % 6,)
