from __future__ import annotations

import math

import pytest

from mtmc.env.reward import STEP_COST, reward


def test_rewards_of_an_episode_add_up_to_its_whole_speedup() -> None:
    best, total = 8.0, 0.0
    for ms in (4.0, 6.0, 1.0):
        total += reward(best, ms, step_cost=0.0)
        best = min(best, ms)
    assert total == pytest.approx(math.log(8.0))


def test_a_slower_or_rejected_step_costs_only_the_step() -> None:
    assert reward(1.0, 5.0) == reward(1.0, None) == -STEP_COST


def test_a_gain_inside_the_noise_is_none() -> None:
    assert reward(1.0, 0.98, noise=0.03, step_cost=0.0) == 0.0
    assert reward(1.0, 0.90, noise=0.03, step_cost=0.0) > 0.05


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1.0, 0.0), (1.0, 1.0, -0.1)])
def test_impossible_times_are_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        reward(*arguments)
