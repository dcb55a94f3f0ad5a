"""Index maps solved for the consumer's axes, and stages carried over by the solution."""

from __future__ import annotations

import pytest

from mtmc.errors import IRError
from mtmc.ir.align import align, covers, freshen, inline, rebind, rename
from mtmc.ir.expr import Cast, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Axis, Dim, Index, IndexLike, linearize
from mtmc.ir.types import DType
from tests.unit.actions.small import at, axes, number, stage

P, Q = Axis("p", Index.of(4)), Axis("q", Index.of(6))
I, J = Axis("i", Index.of(4)), Axis("j", Index.of(6))  # noqa: E741
SHAPE = (Index.of(4), Index.of(6))


def solve(*load: IndexLike) -> dict[str, str]:
    places = align([Index.of(i) for i in load], [Index.of(P), Index.of(Q)], SHAPE)
    return {axis.name: str(place) for axis, place in places.items()}


def test_the_identity_a_shift_and_a_flip() -> None:
    assert solve(I, J) == {"i": "p", "j": "q"}
    assert solve(3 - Index.of(I), J) == {"i": "-p + 3", "j": "q"}
    assert solve(Index.of(I) + 1, J) == {"i": "p - 1", "j": "q"}


def test_a_transposition() -> None:
    places = align([Index.of(J), Index.of(I)], [Index.of(Q), Index.of(P)], (Index.of(6), Index.of(4)))
    assert {axis.name: str(place) for axis, place in places.items()} == {"i": "p", "j": "q"}


def test_reshapes_in_both_directions() -> None:
    flat = Index.of(Axis("r", Index.of(24)))
    assert solve(flat // 6, flat % 6) == {"r": "p * 6 + q"}
    a, b = Axis("a", Index.of(2)), Axis("b", Index.of(3))
    assert solve(I, Index.of(a) * 3 + b) == {"i": "p", "a": "(q // 3)", "b": "(q % 3)"}


def test_a_reshape_over_a_declared_dim() -> None:
    batch = Index.of(Dim("B"))
    b, t, k, row = Axis("b", batch), Axis("t", Index.of(5)), Axis("k", Index.of(8)), Axis("row", batch * 5)
    shape = (batch * 5, Index.of(8))
    places = align([linearize([b, t], [batch, Index.of(5)]), Index.of(k)], [Index.of(row), Index.of(Q)], shape)
    assert str(places[b]) == "(row // 5)" and str(places[t]) == "(row % 5)"
    assert covers(places, (b, t))


def test_extents_of_one_are_always_zero() -> None:
    one = Axis("u", Index.of(1))
    places = align([Index.of(one), Index.of(J)], [Index(), Index.of(Q)], (Index.of(1), Index.of(6)))
    assert str(places[one]) == "0"


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ((Index.of(I) * 2, Index.of(J)), "steps by"),
        ((Index.of(I), Index.of(I)), "no common point"),
        ((Index.of(I), Index()), "no common point"),
        ((Index.of(J) // 2, Index.of(J)), "no common point"),
    ],
)
def test_maps_without_a_solution_say_why(load: tuple[Index, Index], reason: str) -> None:
    with pytest.raises(IRError, match=reason):
        solve(*load)


def test_a_part_of_the_points_is_not_covered() -> None:
    short = Axis("s", Index.of(3))
    assert not covers({short: Index.of(Q)}, (short,))
    assert covers({J: Index.of(Q)}, (J,))
    assert not covers({I: Index.of(P), Axis("m", Index.of(4)): Index.of(P)}, (I, Axis("m", Index.of(4))))


def test_names_are_made_fresh() -> None:
    i, k = Axis("i0", Index.of(4)), Axis("k", Index.of(6))
    (renamed,) = freshen((Stage((i,), "t", (Index.of(i),), Reduce("sum", (k,), (at("x", i, k),))),), (i, k))
    assert [axis.name for axis in renamed.axes] == ["i1"]
    assert isinstance(renamed.body, Reduce) and renamed.body.axes[0].name == "k1"


def test_a_bound_axis_may_become_several() -> None:
    flat, c, h = Axis("r", Index.of(12)), Axis("c", Index.of(3)), Axis("h", Index.of(4))
    places = {flat: Index.of(c) * 4 + h}
    total = rebind(Reduce("sum", (flat,), (at("x", flat),)), places)
    assert isinstance(total, Reduce) and total.axes == (c, h)
    assert isinstance(rebind(Reduce("argmax", (flat,), (at("x", flat),), 1), places), Reduce)
    flipped = {flat: 11 - (Index.of(c) * 4 + h)}
    assert isinstance(rebind(Reduce("max", (flat,), (at("x", flat),)), flipped), Reduce)
    with pytest.raises(IRError, match="change its meaning"):
        rebind(Reduce("argmax", (flat,), (at("x", flat),), 1), flipped)
    with pytest.raises(IRError, match="another number of elements"):
        rebind(Reduce("sum", (flat,), (at("x", flat),)), {flat: Index.of(c)})
    with pytest.raises(IRError, match="scan along r"):
        rebind(Scan("sum", flat, at("x", flat)), flipped)


def test_a_renamed_stage_keeps_the_slow_axis_first() -> None:
    flat, c, b = Axis("r", Index.of(12)), Axis("zc", Index.of(3)), Axis("b", Index.of(4))
    moved = rename(Stage((flat,), "t", (Index.of(flat),), at("x", flat)), {flat: Index.of(c) * 4 + b})
    assert moved.axes == (c, b)


def test_inlining_converts_predicates_and_types() -> None:
    (i,) = axes((Index.of(6),))
    producer = stage((i,), "t", Op("gt", (at("x", i), number(0.0))))
    inner = Index.of(i) - 1
    consumer = stage((i,), "y", Load("t", (inner,), (inner,), 1.0))
    kinds = {"x": DType.F32, "t": DType.F32, "y": DType.F32}
    body = inline((producer,), consumer, (Index.of(6),), kinds.__getitem__).body
    assert isinstance(body, Select) and body.when == (inner,)
    assert isinstance(body.then, Cast) and body.then.dtype is DType.F32


def test_what_can_not_be_inlined() -> None:
    (i,) = axes((Index.of(6),))
    kinds = {"x": DType.F32, "t": DType.F32, "n": DType.I64}.__getitem__
    reduced = stage((), "t", Reduce("sum", (i,), (at("x", i),)))
    with pytest.raises(IRError, match="point by point"):
        inline((reduced,), stage((i,), "y", at("t")), (), kinds)
    gather = stage((i,), "y", Load("t", (at("n", i),)))
    with pytest.raises(IRError, match="gathered"):
        inline((stage((i,), "t", at("x", i)),), gather, (Index.of(6),), kinds)
