from __future__ import annotations

import pytest

from mtmc.search.budget import Budget, Spending


def test_ends_by_steps() -> None:
    spending = Spending(Budget(steps=2))
    assert not spending.spent and spending.seconds_left is None
    spending.steps = 2
    assert spending.spent and spending.steps_left == 0


def test_ends_by_seconds() -> None:
    now = [100.0]
    spending = Spending(Budget(steps=9, seconds=3.0), clock=lambda: now[0])
    now[0] = 102.0
    assert spending.seconds_left == pytest.approx(1.0) and not spending.spent
    now[0] = 103.5
    assert spending.seconds_left == 0.0 and spending.spent


@pytest.mark.parametrize("arguments", [{"steps": -1}, {"seconds": 0.0}, {"seconds": -3.0}])
def test_a_senseless_budget_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Budget(**arguments)
