"""Numbers over a benchmark: arrays in, numbers out. A problem without a value is ``None``, never left out
silently."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def speedups(baseline_ms: Sequence[float | None], ms: Sequence[float | None]) -> list[float | None]:
    """Baseline over time for each problem, both milliseconds; None where either is missing."""
    return [b / t if b is not None and t else None for b, t in zip(baseline_ms, ms, strict=True)]


def share(correct: Sequence[bool]) -> float:
    """Part of the problems that are correct, 0 to 1; 0 for none."""
    return sum(correct) / len(correct) if correct else 0.0


def fast_p(correct: Sequence[bool], speedup: Sequence[float | None], p: float) -> float:
    """Part of *all* problems that are correct and more than ``p`` times as fast (KernelBench, Ouyang et al.,
    2025).

    Strictly more, as in KernelBench's ``score.py``; a problem that failed or has no time stays in the
    denominator. ``p = 0`` is the share that is correct, timed or not.
    """
    pairs = zip(correct, speedup, strict=True)
    return share([ok and (p == 0 or (s is not None and s > p)) for ok, s in pairs])


def geometric_mean(values: Sequence[float]) -> float | None:
    """By the mean of logs, so that no product over- or underflows; None for no values.

    Raises:
        ValueError: a value is zero, negative or not finite: an aggregate must not hide it.
    """
    if not values:
        return None
    if bad := [v for v in values if not (math.isfinite(v) and v > 0)]:
        raise ValueError(f"a geometric mean needs finite positive values, got {bad[0]}")
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def median(values: Sequence[float]) -> float | None:
    """None for no values."""
    return statistics.median(values) if values else None
