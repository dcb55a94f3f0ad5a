"""The reward of one step: how much the best so far got better, on a log scale, less what a step costs."""

from __future__ import annotations

import math

STEP_COST = 0.005
"""Half a percent of speed: a step that gains less is not worth its measurement."""


def reward(best_ms: float, ms: float | None, noise: float = 0.0, step_cost: float = STEP_COST) -> float:
    """``max(0, log(best / new) - log(1 + noise)) - step_cost``.

    Rewards of an episode add up to the log of its whole speedup, so order does not matter, and a step that loses speed
    costs no more than the step itself: some gains need a losing step first.

    Args:
        best_ms: best accepted time before the step, milliseconds.
        ms: time of the step's program; None where it was rejected or nothing was judged.
        noise: relative repeat noise of a timing (interquartile range over median); a gain inside it counts nothing.
        step_cost: subtracted always.
    """
    if best_ms <= 0 or (ms is not None and ms <= 0) or noise < 0:
        raise ValueError(f"times must be positive and noise not negative, got {best_ms}, {ms}, {noise}")
    gain = 0.0 if ms is None else max(0.0, math.log(best_ms / ms) - math.log1p(noise))
    return gain - step_cost
