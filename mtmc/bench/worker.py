"""What a worker process does with one problem: the whole search, then its result as the fields of a row."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtmc.bench.suite import BenchProblem
from mtmc.data.record import Record

if TYPE_CHECKING:
    from mtmc.search.result import SearchResult


class BenchOptions(Record):
    """Options of a benchmark run that reach the workers."""

    steps: int = 16
    """Judged steps a problem, at most."""
    seconds: float = 60.0
    """Wall seconds of search a problem, at most."""
    policy: str = "heuristic"
    seed: int = 0
    patience: int = 4
    """Steps without a new best until the search ends."""
    allow: tuple[str, ...] = ()
    """Lower precisions that are permitted: ``tf32``, ``bf16``."""
    pure: bool = False
    """No library compute."""
    compile_max: bool = False
    """Also time torch.compile's max-autotune mode."""
    save: str | None = None
    """Folder for the generated files."""

    def flags(self) -> dict[str, Any]:
        """What changes results, for the fingerprint of a result file."""
        return self.model_dump(mode="json", exclude={"save"})


def run_problem(problem: BenchProblem, options: BenchOptions) -> dict[str, Any]:
    """Optimise one problem file; the fields of its ``BenchRow``.

    Raises:
        MtmcError: the file can't be used or judged; the runner makes a row of it.
    """
    # Imports torch, so not at the top: the parent of the workers never needs it.
    from mtmc.search.driver import optimize_problem

    started = time.monotonic()
    result = optimize_problem(
        Path(problem.path),
        steps=options.steps,
        seconds=options.seconds,
        policy=options.policy,
        seed=options.seed,
        patience=options.patience,
        allow=options.allow,
        pure=options.pure,
        compile_max=options.compile_max,
    )
    if options.save is not None and result.correct:
        save(Path(options.save) / f"{problem.name}_new.py", result.candidate.source)
    return row_fields(result) | {"wall_s": time.monotonic() - started}


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
        "flags": (*best.flags, *result.notes),
    }


def save(path: Path, source: str) -> None:
    """Write a generated file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(source, encoding="utf-8")
    os.replace(part, path)
