"""Runs a suite: workers side by side, one row a problem on disk as it finishes, resumed after an
interruption.

The runner takes no lock: the judge in every worker holds ``gpu_lock`` around everything that launches, so
capturing, rendering and compiling overlap and measurements don't.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

from pydantic import ValidationError

from mtmc.bench.pool import Ending, run_tasks
from mtmc.bench.results import ResultFile
from mtmc.bench.row import (
    CAPTURE_ERROR,
    INTERNAL_ERROR,
    JUDGE_ERROR,
    PROBLEM_ERROR,
    WORKER_CRASH,
    BenchRow,
)
from mtmc.bench.suite import BenchProblem
from mtmc.data.evaluation import Outcome
from mtmc.errors import CaptureError, JudgeError, MtmcError, ProblemError, StoreError
from mtmc.log import get_logger
from mtmc.store.store import Store

log = get_logger(__name__)

Solve = Callable[[BenchProblem, Any], dict[str, Any]]
"""Problem and options to the fields of a ``BenchRow``, but ``problem`` and ``number``. A picklable
function."""


class Finished(NamedTuple):
    """All rows of the selection by problem, the number run now, and whether Ctrl-C ended the run early."""

    rows: dict[str, BenchRow]
    ran: int
    interrupted: bool


def run_suite(
    problems: Sequence[BenchProblem],
    solve: Solve,
    options: Any,
    results: ResultFile,
    *,
    workers: int,
    timeout_s: float,
    tasks_per_worker: int = 10,
    retry_failed: bool = False,
    on_row: Callable[[BenchRow], None] | None = None,
    keep: Callable[[BenchRow], None] | None = None,
) -> Finished:
    """Run every problem that ``results`` does not hold yet. Nothing that one problem does ends the run.

    Args:
        problems: the selection.
        solve: called in a spawned worker.
        options: picklable, handed to every call.
        results: the open result file.
        workers: processes side by side.
        timeout_s: wall seconds a problem; then its process group is killed.
        retry_failed: run again what is not correct so far; the newer row counts.
        on_row: called for each new row after it is on disk (progress).
        keep: called before that to keep the row elsewhere too (``store_rows``).

    Raises:
        BenchError: a row can't be written; the rows before it are safe.
    """
    done = {p.name for p in problems if p.name in results.rows and (results.rows[p.name].correct or not retry_failed)}
    todo = [problem for problem in problems if problem.name not in done]
    ran, interrupted = 0, False
    with _terminate_as_interrupt():
        endings = run_tasks(
            todo,
            Call(solve, options),
            workers=workers,
            timeout_s=timeout_s,
            tasks_per_worker=tasks_per_worker,
        )
        try:
            for ending in endings:
                row = _row(ending)
                results.append(row)
                ran += 1
                for listener in (keep, on_row):
                    if listener is not None:
                        listener(row)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            endings.close()
    return Finished({p.name: results.rows[p.name] for p in problems if p.name in results.rows}, ran, interrupted)


def store_rows(store: Store, fingerprint: str) -> Callable[[BenchRow], None]:
    """A ``keep`` that puts rows in the store, whose shards carry them to other machines. A store error is
    logged."""

    def keep(row: BenchRow) -> None:
        try:
            store.record_result(fingerprint, row.problem, row.model_dump_json())
        except StoreError as error:
            log.warning("The row of %s is in the result file but not in the store. %s", row.problem, error)

    return keep


def stored_rows(store: Store, fingerprint: str) -> list[BenchRow]:
    """What the store knows of this configuration: rows of earlier runs here, and of shards that were
    merged."""
    return [BenchRow.model_validate_json(text) for text in store.results(fingerprint).values()]


@dataclass(frozen=True)
class Call:
    """What a worker runs: ``solve``, with every failure turned into a row."""

    solve: Solve
    options: Any

    def __call__(self, problem: BenchProblem) -> BenchRow:
        try:
            fields = self.solve(problem, self.options)
            return BenchRow(problem=problem.name, number=problem.number, **fields)
        except ValidationError as error:
            return failed_row(problem, INTERNAL_ERROR, f"The worker's row is not valid: {error.errors()[0]['msg']}")
        except ProblemError as error:
            return failed_row(problem, PROBLEM_ERROR, error.message)
        except CaptureError as error:
            return failed_row(problem, CAPTURE_ERROR, str(error))
        except JudgeError as error:
            return failed_row(problem, JUDGE_ERROR, error.message)
        except MtmcError as error:
            return failed_row(problem, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        except (Exception, SystemExit) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            return failed_row(problem, INTERNAL_ERROR, f"{type(error).__name__}: {error} (at {where})")


def failed_row(problem: BenchProblem, outcome: str, message: str, wall_s: float = 0.0) -> BenchRow:
    return BenchRow(
        problem=problem.name,
        number=problem.number,
        outcome=outcome,
        correct=False,
        message=message,
        wall_s=wall_s,
    )


def _row(ending: Ending[BenchProblem, BenchRow]) -> BenchRow:
    if ending.result is not None:
        return ending.result.model_copy(update={"wall_s": ending.result.wall_s or ending.wall_s})
    outcome = Outcome.TIMEOUT if ending.kind == "timeout" else WORKER_CRASH
    return failed_row(ending.task, outcome, ending.message, ending.wall_s)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM (a scheduler's end of time) keeps what was found, like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
