"""A result file in numbers: every aggregate that the tables and ``--json`` show, failures in every
denominator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mtmc.bench.metrics import fast_p, geometric_mean, median, speedups
from mtmc.bench.row import BenchRow
from mtmc.data.record import Record

LEVELS = (0.0, 1.0, 1.5, 2.0)
"""The p of fast_p."""


class Comparison(Record):
    """mtmc against one baseline. Speedups are baseline over mtmc, same run."""

    compared: int
    """Problems with both times."""
    baseline_missing: int
    """Correct and timed problems whose baseline has no time (torch.compile failed); they count as not
    faster."""
    fast: dict[str, float]
    """``fast_p`` over *all* problems, by p as text: share that is correct and strictly more than p times as
    fast."""
    geomean: float | None
    """Over the compared problems."""
    geomean_all: float | None
    """Also with the failed ones, where the user keeps eager: the baseline over eager (1 against eager
    itself)."""
    median: float | None
    """Over the compared problems."""
    slower: int
    """Compared problems where mtmc is slower than the baseline, by more than the repeat noise."""


class Summary(Record):
    """All of one result file."""

    problems: int
    correct: int
    pure: int
    """Correct with no library compute at all."""
    timed: int
    stock_checked: int
    stock_correct: int
    """Of ``stock_checked``, those that pass KernelBench's own check."""
    outcomes: dict[str, int]
    generated_share: float | None
    """Mean share of work in generated kernels over correct problems."""
    eager: Comparison
    compiled: Comparison
    wins: dict[str, int]
    """How often each of eager, torch.compile and mtmc has the lowest median, where all that ran are
    compared."""
    median_wall_s: float | None
    median_gpu_lock_s: float | None
    total_wall_s: float


def summarise(rows: Sequence[BenchRow]) -> Summary:
    """Aggregate rows; times of problems that are not correct do not exist, hence never count."""
    correct = [row.correct for row in rows]
    right = [row for row in rows if row.correct]
    return Summary(
        problems=len(rows),
        correct=sum(correct),
        pure=sum(row.pure for row in right),
        timed=sum(row.mtmc_ms is not None for row in right),
        stock_checked=sum(row.stock_correct is not None for row in rows),
        stock_correct=sum(row.stock_correct is True for row in rows),
        outcomes=dict(Counter(row.outcome for row in rows).most_common()),
        generated_share=_mean([row.generated_share for row in right if row.generated_share is not None]),
        eager=_compare(rows, [row.eager_ms for row in rows]),
        compiled=_compare(rows, [row.compile_ms for row in rows]),
        wins=_wins(right),
        median_wall_s=median([row.wall_s for row in rows]),
        median_gpu_lock_s=median([row.gpu_lock_s for row in rows]),
        total_wall_s=sum(row.wall_s for row in rows),
    )


def _compare(rows: Sequence[BenchRow], baseline_ms: Sequence[float | None]) -> Comparison:
    speed = speedups(baseline_ms, [row.mtmc_ms for row in rows])
    compared = [s for s in speed if s is not None]
    timed = [row.mtmc_ms is not None for row in rows]
    fallback = [
        base / row.eager_ms if base and row.eager_ms else 1.0
        for row, base in zip(rows, baseline_ms, strict=True)
        if not row.correct
    ]
    return Comparison(
        compared=len(compared),
        baseline_missing=sum(t and b is None for t, b in zip(timed, baseline_ms, strict=True)),
        fast={f"{p:g}": fast_p([row.correct for row in rows], speed, p) for p in LEVELS},
        geomean=geometric_mean(compared),
        geomean_all=geometric_mean(compared + fallback) if compared else None,
        median=median(compared),
        slower=sum(s is not None and is_slower(s, row.spread) for s, row in zip(speed, rows, strict=True)),
    )


def is_slower(speedup: float, spread: float | None) -> bool:
    """Slower than the baseline by more than the repeat noise (1% where the noise is unknown or smaller)."""
    return speedup < 1 - max(spread or 0.0, 0.01)


def losses(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Correct problems where mtmc is slower than eager or torch.compile, the worst first."""

    def worst(row: BenchRow) -> float:
        return min(s for s in (row.speedup, row.compile_speedup, 1e9) if s is not None)

    return sorted((row for row in rows if is_slower(worst(row), row.spread)), key=worst)


def failures(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """Problems without a correct program, by outcome and number."""
    return sorted((row for row in rows if not row.correct), key=lambda row: (row.outcome, row.number))


def _wins(rows: Sequence[BenchRow]) -> dict[str, int]:
    wins = Counter({"eager": 0, "torch.compile": 0, "mtmc": 0})
    for row in rows:
        times = {"mtmc": row.mtmc_ms, "eager": row.eager_ms, "torch.compile": row.compile_ms}
        known = {name: ms for name, ms in times.items() if ms is not None}
        if "mtmc" in known and len(known) > 1:
            wins[min(known, key=lambda name: known[name])] += 1
    return dict(wins)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
