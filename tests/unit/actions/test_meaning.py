"""Every legal action keeps the meaning: random Programs, up to three random actions, numpy before and after."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtmc.actions import apply, parse, propose
from mtmc.data.hardware import H200
from mtmc.ir.program import Program
from mtmc.ir.types import DType
from tests.strategies import programs
from tests.unit.actions.small import assert_same_meaning


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(dtypes=(DType.F32,)), st.data())
def test_random_actions_keep_the_meaning(program: Program, data: st.DataObject) -> None:
    assert_same_meaning(program, after_actions(program, data))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(dtypes=(DType.F32,), dynamic=True), st.data())
def test_extents_may_be_declared_dims(program: Program, data: st.DataObject) -> None:
    assert_same_meaning(program, after_actions(program, data))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(dtypes=(DType.F16, DType.BF16)), st.data())
def test_half_precision_programs(program: Program, data: st.DataObject) -> None:
    assert_same_meaning(program, after_actions(program, data))


def after_actions(program: Program, data: st.DataObject) -> Program:
    """The Program after three random candidates, each of which prints and parses."""
    for _ in range(3):
        candidates = propose(program, H200)
        assert len(candidates.actions) <= 64
        action = data.draw(st.sampled_from(candidates.actions))
        line = action.describe(program)
        assert parse(line) == action, line
        program = apply(program, action)
    return program
