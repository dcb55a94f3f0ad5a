"""Every legal action keeps the meaning: random Programs, up to three random actions, numpy before and after."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtmc.actions import apply, parse, propose
from mtmc.data.hardware import H200
from mtmc.ir.check import check
from mtmc.ir.interp import run
from mtmc.ir.program import Program
from mtmc.ir.types import DType
from tests.strategies import programs, values


def assert_same_meaning(before: Program, after: Program, tolerance: float = 1e-9) -> None:
    given_values = values(before)
    with np.errstate(all="ignore"):
        wanted, found = run(before, given_values), run(after, given_values)
    assert before.outputs == after.outputs
    for name in before.outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(dtypes=(DType.F32,)), st.data())
def test_random_actions_keep_the_meaning(program: Program, data: st.DataObject) -> None:
    before = program
    for _ in range(3):
        candidates = propose(program, H200)
        assert len(candidates.actions) <= 64
        action = data.draw(st.sampled_from(candidates.actions))
        line = action.describe(program)
        assert parse(line) == action, line
        program = apply(program, action)
        check(program)
    assert_same_meaning(before, program)
