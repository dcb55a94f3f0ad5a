from __future__ import annotations

import math

import pytest

from mtmc.bench.metrics import fast_p, geometric_mean, median, share, speedups
from mtmc.bench.row import WORKER_CRASH, BenchRow
from mtmc.bench.summary import failures, losses, summarise


def row(number: int, eager: float | None, compiled: float | None, mtmc: float | None, **more: object) -> BenchRow:
    return BenchRow(
        problem=f"{number}_p",
        number=number,
        outcome="accepted",
        correct=True,
        eager_ms=eager,
        compile_ms=compiled,
        mtmc_ms=mtmc,
        **more,  # type: ignore[arg-type]
    )


def failed(number: int, eager: float | None = None, compiled: float | None = None) -> BenchRow:
    return BenchRow(
        problem=f"{number}_p",
        number=number,
        outcome=WORKER_CRASH,
        correct=False,
        message="died [bad]",
        eager_ms=eager,
        compile_ms=compiled,
    )


def test_fast_p_is_strict_and_keeps_failures_in_the_denominator() -> None:
    correct = [True, True, True, False]
    speedup = [2.0, 1.0, None, None]
    assert fast_p(correct, speedup, 0) == 0.75
    assert fast_p(correct, speedup, 1) == 0.25
    assert fast_p(correct, speedup, 2) == 0
    assert fast_p([False], [9.0], 1) == 0
    with pytest.raises(ValueError):
        fast_p(correct, speedup[:3], 1)


def test_geometric_mean_neither_underflows_nor_overflows() -> None:
    assert geometric_mean([1e-200] * 100) == pytest.approx(1e-200)
    assert geometric_mean([1e200] * 100) == pytest.approx(1e200)
    assert geometric_mean([0.5, 2.0, 4.0]) == pytest.approx(4 ** (1 / 3))
    assert geometric_mean([]) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_geometric_mean_refuses_what_would_hide(bad: float) -> None:
    with pytest.raises(ValueError):
        geometric_mean([1.0, bad])


def test_small_ones() -> None:
    assert speedups([2.0, None, 3.0], [1.0, 1.0, None]) == [2.0, None, None]
    assert median([3.0, 1.0, 2.0]) == 2.0 and median([]) is None
    assert share([]) == 0.0


def test_summary_counts_failures_and_missing_baselines() -> None:
    rows = [
        row(1, 4.0, 2.0, 1.0, pure=True, generated_share=1.0),
        row(2, 1.0, 0.5, 1.0, generated_share=0.5),
        row(3, 2.0, None, 1.0),
        failed(4, eager=2.0, compiled=1.0),
    ]
    s = summarise(rows)
    assert (s.problems, s.correct, s.pure, s.timed) == (4, 3, 1, 3)
    assert s.eager.fast == {"0": 0.75, "1": 0.5, "1.5": 0.5, "2": 0.25}
    assert s.eager.geomean == pytest.approx(2.0)
    assert s.eager.geomean_all == pytest.approx(8 ** (1 / 4))
    assert s.compiled.fast["1"] == 0.25 and s.compiled.compared == 2 and s.compiled.baseline_missing == 1
    assert s.compiled.geomean == pytest.approx(1.0)
    # The failed problem leaves the user with eager, half as fast as torch.compile.
    assert s.compiled.geomean_all == pytest.approx(0.5 ** (1 / 3))
    assert s.generated_share == 0.75
    assert s.wins == {"eager": 0, "torch.compile": 1, "mtmc": 2}
    assert s.outcomes == {"accepted": 3, "worker_crash": 1}
    assert [r.number for r in losses(rows)] == [2] and [r.number for r in failures(rows)] == [4]


def test_a_loss_is_more_than_noise() -> None:
    assert losses([row(1, 0.97, None, 1.0, spread=0.05)]) == []
    assert len(losses([row(1, 0.97, None, 1.0, spread=0.01)])) == 1


def test_summary_of_a_machine_without_a_gpu() -> None:
    s = summarise([row(1, None, None, None)])
    assert s.eager.geomean is None and s.eager.fast["0"] == 1.0 and s.eager.fast["1"] == 0.0
    assert s.wins == {"eager": 0, "torch.compile": 0, "mtmc": 0}


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": "fine", "correct": True},
        {"outcome": "accepted", "correct": False, "message": "x"},
        {"outcome": "wrong_result", "correct": True, "message": "x"},
        {"outcome": "wrong_result", "correct": False},
        {"outcome": "wrong_result", "correct": False, "message": "x", "mtmc_ms": 1.0},
    ],
)
def test_rows_refuse_contradictions(fields: dict) -> None:
    with pytest.raises(ValueError):
        BenchRow(problem="p", number=1, **fields)
