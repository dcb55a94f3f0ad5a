"""Interleaving, the stop rule, and doubts about samples, with children that are plain functions."""

from __future__ import annotations

import random
import time

import pytest

from mtmc.verify.options import TimingBudget
from mtmc.verify.timing import Side, doubts, half_width, interleave

BUDGET = TimingBudget(seconds=0.5, min_samples=5, max_samples=40)


class Fake:
    """A child whose runs take ``ms`` on the device and ``wall_ms`` on the parent's clock."""

    def __init__(self, ms: float, noise: float = 0.0, late: float = 0.0, wall_ms: float | None = None) -> None:
        self.ms, self.noise, self.late = ms, noise, late
        self.wall_ms = ms if wall_ms is None else wall_ms
        self.order: list[str] = []

    def side(self, name: str, order: list[str]) -> Side:
        def block(runs: int, warm_up: int) -> list[list[float]]:
            order.append(name)
            time.sleep((runs + warm_up) * self.wall_ms / 1e3)
            return [[self.ms * (1 + self.noise * random.uniform(-1, 1)), self.late, 0.05] for _ in range(runs)]

        return Side(name, block)


def test_sides_take_turns_in_both_orders() -> None:
    order: list[str] = []
    sides = [Fake(1.0, noise=0.3).side("a", order), Fake(1.0, noise=0.3).side("b", order)]
    interleave(sides, TimingBudget(seconds=1, min_samples=20, max_samples=20))
    assert order[:6] == ["a", "b", "a", "b", "b", "a"]
    assert all(len(s.device_ms) >= 20 for s in sides)


def test_a_steady_side_stops_early_and_a_noisy_one_goes_on() -> None:
    steady, noisy = Fake(0.5).side("s", []), Fake(0.5, noise=0.9).side("n", [])
    interleave([steady, noisy], BUDGET)
    assert len(steady.device_ms) < len(noisy.device_ms)
    assert len(noisy.device_ms) >= BUDGET.max_samples


def test_a_slow_side_stops_at_its_time() -> None:
    side = Fake(60.0, noise=0.9).side("slow", [])
    interleave([side], TimingBudget(seconds=0.2, min_samples=3, max_samples=100))
    assert 3 <= len(side.device_ms) <= 8


def test_work_elsewhere_is_added_and_named() -> None:
    side, other = Fake(0.5, late=2.0, wall_ms=2.5).side("cheat", []), Fake(0.5).side("eager", [])
    interleave([side, other], BUDGET)
    assert side.timing.median_ms == pytest.approx(2.5)
    assert any("outside the current stream" in d for d in doubts(side, [other]))


def test_a_child_that_claims_too_little_is_named() -> None:
    liar, honest = Fake(0.01, wall_ms=6.0).side("liar", []), Fake(2.0).side("eager", [])
    interleave([liar, honest], BUDGET)
    assert any("did not claim" in d for d in doubts(liar, [honest]))
    assert doubts(honest, [liar]) == []


def test_half_width_shrinks_with_samples() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert half_width(values * 10) < half_width(values) and half_width([1.0] * 8) == 0
