"""What a worker process does with one problem: the whole search, then its result as the fields of a row."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtmc.bench.suite import BenchProblem
from mtmc.data.record import Record

if TYPE_CHECKING:
    from mtmc.search.result import SearchResult
    from mtmc.verify.options import JudgeOptions


class BenchOptions(Record):
    """Options of a benchmark run that reach the workers."""

    steps: int = 8
    """Judged steps a problem, at most."""
    seconds: float = 60.0
    """Wall seconds of search a problem, at most."""
    policy: str = "heuristic"
    seed: int = 0
    patience: int = 2
    """Slower steps in a row before the search goes back to the best."""
    pure: bool = False
    """No library compute."""
    compile_max: bool = False
    """Also time torch.compile's max-autotune mode."""
    compile_timeout_s: float = 180.0
    """Seconds for torch.compile of one problem; beyond it the row has no compile time and says so."""
    save: str | None = None
    """Folder for the generated files; it exists."""
    fresh: bool = False
    """Measure again what the store knows."""
    shared_card: bool = True
    """Other workers use the card between this one's locked regions."""
    command: str = ""
    """As typed, for the store."""

    def flags(self) -> dict[str, Any]:
        """What changes results, for the fingerprint of a result file."""
        return self.model_dump(mode="json", exclude={"save", "fresh", "shared_card", "command"})


def run_problem(problem: BenchProblem, options: BenchOptions) -> dict[str, Any]:
    """Optimise one problem file; the fields of its ``BenchRow``.

    Raises:
        MtmcError: the file can't be used or judged; the runner makes a row of it.
    """
    # Imports torch, so not at the top: the parent of the workers never needs it.
    from mtmc.search.driver import optimize_problem
    from mtmc.search.output import write_whole, written_source

    started = time.monotonic()
    result = optimize_problem(
        Path(problem.path),
        steps=options.steps,
        seconds=options.seconds,
        policy=options.policy,
        seed=options.seed,
        patience=options.patience,
        pure=options.pure,
        compile_max=options.compile_max,
        judge_options=bench_judge(options),
        fresh=options.fresh,
        command=options.command,
    )
    if options.save is not None and result.correct:
        target = Path(options.save) / f"{problem.name}_new.py"
        verify = shlex.join(["mtmc", "optimize", problem.path, "--check", str(target)])
        write_whole(target, written_source(result, verify))
    return row_fields(result) | {"wall_s": time.monotonic() - started}


def bench_judge(options: BenchOptions) -> JudgeOptions:
    """The judge of a benchmark run: steps are checked on the problem's own inputs and timed briefly, the final program
    on every input set and for longer, so that a hundred problems cost minutes of the card and not hours."""
    from mtmc.verify.options import JudgeOptions, TimingBudget

    return JudgeOptions(
        shared_card=options.shared_card,
        step_sets=("seed0",),
        step_budget=TimingBudget(seconds=0.05, max_samples=20),
        final_budget=TimingBudget(seconds=0.25, min_samples=9, max_samples=50),
        kernel_repeats=3,
        compile_timeout_s=options.compile_timeout_s,
    )


def row_fields(result: SearchResult) -> dict[str, Any]:
    """The fields of a row, from what the judge said about the final program."""
    best, baselines, right = result.best, result.baselines, result.correct
    maximum, reduced = baselines.compiled_max, baselines.eager_reduced
    return {
        "outcome": best.outcome.value,
        "correct": right,
        "pure": right and result.pure,
        "generated_share": result.generated_share if right else None,
        "eager_ms": result.eager_ms,
        "compile_ms": result.compile_ms,
        "compile_max_ms": maximum.median_ms if maximum else None,
        "eager_tf32_ms": reduced.median_ms if reduced else None,
        "mtmc_ms": result.ms if right else None,
        "spread": best.timing.spread if right and best.timing else None,
        "error": max((e.norm for e in best.errors), default=None),
        "eager_error": max((e.reference_norm for e in best.errors), default=baselines.eager_error),
        "steps": result.steps,
        "wall_s": result.wall_s,
        "gpu_lock_s": result.gpu_lock_s,
        "compile_error": baselines.compile_error,
        "message": best.message,
        "actions": result.path,
        "flags": (*best.flags, *result.problem.flags, *result.notes),
    }
