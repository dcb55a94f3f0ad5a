"""What the heuristic chooses, on small Programs and times that leave no doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mtmc.actions import apply, propose
from mtmc.data.hardware import H200
from mtmc.env.heuristic import Heuristic, saving
from mtmc.env.profile import estimated_times
from mtmc.env.state import Attempt, State
from mtmc.ir.expr import Contract, Load, Reduce, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Program, Ref, Role, Stages
from mtmc.ir.types import DType


def observed(program: Program, times_ms: Mapping[str, float] | None = None, **changes) -> State:
    times = times_ms or estimated_times(program, H200)
    found = propose(program, H200).actions
    state = State(program, H200, found, times_ms=times, measured=times_ms is not None)
    return replace(state, ms=sum(times.values()), **changes)


def chosen(state: State, policy: Heuristic | None = None) -> str:
    lines = [action.describe(state.program) for action in state.actions]
    return lines[(policy or Heuristic()).choose("", lines, state).index]


def row_sum(rows: int, columns: int) -> Program:
    i, k = Axis("i", Index.of(rows)), Axis("k", Index.of(columns))
    body = Reduce("sum", (k,), (Load("x", (Index.of(i), Index.of(k))),))
    x = replace(Buffer.temp("x", DType.F32, (i.extent, k.extent)), role=Role.INPUT, source="0")
    kernel = Kernel(
        "k0",
        Stages((Stage((i,), "out", (Index.of(i),), body),)),
        "sum",
        (Call("aten.sum.dim_IntList", (Ref("x"), (Index.of(1),)), results=("out",)),),
    )
    return Program((x, Buffer.temp("out", DType.F32, (i.extent,))), (kernel,), ("out",))


def product(size: int) -> Program:
    m, n, k = (Axis(name, Index.of(size)) for name in "mnk")
    a, b = (
        replace(Buffer.temp(name, DType.F32, (m.extent, k.extent)), role=Role.INPUT, source=source)
        for name, source in (("a", "0"), ("b", "1"))
    )
    at = (Index.of(m), Index.of(n))
    left, right = Load("a", (Index.of(m), Index.of(k))), Load("b", (Index.of(k), Index.of(n)))
    kernel = Kernel(
        "k0",
        Stages((Stage((m, n), "out", at, Contract((k,), ((left, right),))),)),
        "matmul",
        (Call("aten.matmul.default", (Ref("a"), Ref("b")), results=("out",)),),
    )
    return Program((a, b, Buffer.temp("out", DType.F32, (m.extent, n.extent))), (kernel,), ("out",))


def test_fuses_a_memory_bound_chain_first_and_judges_it_with_what_follows(chain) -> None:
    state = observed(chain(3, rows=8192, columns=8192))
    lines = [action.describe(state.program) for action in state.actions]
    decision = Heuristic().choose("", lines, state)
    assert lines[decision.index].startswith("fuse k")
    assert not decision.judge


def test_generates_what_the_library_runs() -> None:
    state = observed(row_sum(4096, 512))
    assert chosen(state) == "generate all with default schedules"
    lines = [action.describe(state.program) for action in state.actions]
    assert Heuristic().choose("", lines, state).judge


def test_splits_a_reduction_that_leaves_the_card_idle() -> None:
    assert chosen(observed(row_sum(1, 1 << 26))).startswith("split the reduction of k0 (sum) across")
    assert not any("split" in a.describe(p) for p in [row_sum(8192, 8192)] for a in observed(p).actions)


def test_encodes_a_compute_bound_product_but_not_a_small_one() -> None:
    assert chosen(observed(product(4096))).startswith("encode the operands of k0 (matmul)")
    assert not chosen(observed(product(64))).startswith("encode")


def test_stops_where_nothing_promises_enough(chain) -> None:
    program = apply(chain(1, rows=8192, columns=8192), observed(chain(1)).actions[0], H200)
    least = estimated_times(program, H200)
    assert chosen(observed(program, least)) == "stop"
    assert chosen(observed(program)) == "stop", "without measurements there is no distance to close"


def test_tries_schedules_where_a_kernel_is_far_from_its_roofline_and_gives_up(chain) -> None:
    program = apply(chain(1, rows=8192, columns=8192), observed(chain(1)).actions[0], H200)
    slow = {"k0": 4 * estimated_times(program, H200)["k0"]}
    line = chosen(observed(program, slow))
    assert line.startswith("tile k0")
    tries = tuple(Attempt(line, "accepted", 0.99) for _ in range(9))
    assert chosen(observed(program, slow, history=tries)) != line
    useful = tuple(Attempt(line, "accepted", 1.5) for _ in range(9))
    assert chosen(observed(program, slow, history=useful)) == line, "what helps is tried again"


def test_takes_back_what_the_library_does_faster() -> None:
    program = apply(product(512), observed(product(512)).actions[0], H200)
    assert chosen(observed(program, {"k0": 2.0}, library_ms={"k0": 0.5})) == "revert k0 (matmul) to the library"
    assert not chosen(observed(program, {"k0": 0.5}, library_ms={"k0": 2.0})).startswith("revert")


def test_the_saving_of_a_class_is_that_of_one_pair(chain) -> None:
    program = chain(6, rows=4096, columns=4096)
    fuse = next(action for action in observed(program).actions if action.kind == "fuse")
    assert saving(program, fuse, H200).ratio == pytest.approx(0.5, abs=0.02)


def test_savings_are_not_computed_again(chain, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, state = Heuristic(), observed(chain(3, rows=4096, columns=4096))
    first = chosen(state, policy)

    def forbidden(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("mtmc.env.heuristic.saving", forbidden)
    assert chosen(state, policy) == first
