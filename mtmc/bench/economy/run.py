"""Works on the plan with the lanes that there are, until it is done or the time is spent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

from mtmc.bench.economy.plan import Job, Plan
from mtmc.bench.economy.rows import (
    Book,
    EconomyOptions,
    EpisodeRow,
    FailureRow,
    NodeRow,
    RepeatRow,
    Row,
    SessionRow,
    StateRow,
)
from mtmc.data.record import Record

GRACE_S = 60.0
"""How long a node that was begun before the end of the time may take after it."""


class Done(Record):
    """A lane ended its job; ``message`` says why there was no verdict, ``died`` that its process is gone."""

    message: str = ""
    died: bool = False


class Crew(Protocol):
    """Lanes side by side; ``crew.Processes`` is the real one."""

    lanes: Sequence[int]

    def give(self, lane: int, job: Job) -> None: ...

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Row | Done]]:
        """What came in from the lanes, after at most ``timeout_s``."""
        ...


def run(
    crew: Crew,
    options: EconomyOptions,
    book: Book,
    minutes: float,
    clock: Callable[[], float] = time.monotonic,
    on_row: Callable[[Row], None] = lambda row: None,
) -> SessionRow:
    """Work on the plan until it is done or the time, earlier sessions included, is spent. Ctrl-C keeps every row."""
    before, began, total_s = book.spent_s, clock(), 60 * minutes
    deadline = began + max(0.0, total_s - before)
    plan = Plan(options, book.rows, total_s)
    busy: dict[int, Job] = {}
    last: dict[int, str] = {}
    reason: Literal["complete", "time", "interrupted"] = "complete"

    def add(row: Row) -> None:
        row = row.model_copy(update={"at": round(before + clock() - began, 3)})
        book.add(row)
        plan.learn(row)
        on_row(row)

    try:
        while True:
            for lane in crew.lanes:
                if lane in busy or clock() >= deadline:
                    continue
                job = plan.next(before + clock() - began, last.get(lane, ""), deadline)
                if job is not None:
                    busy[lane], last[lane] = job, job.program
                    crew.give(lane, job)
            if clock() >= deadline and (busy or plan.next(total_s, "", deadline)):
                reason = "time"
            if not busy or clock() > deadline + GRACE_S:
                break
            for lane, message in crew.wait(1.0):
                if not isinstance(message, Done):
                    add(message)
                    continue
                job = busy.pop(lane, None)  # none: an idle lane died
                if job is None:
                    continue
                plan.landed(job)
                if message.message:
                    add(FailureRow(program=job.program, what=job.kind, message=message.message))
    except KeyboardInterrupt:
        reason = "interrupted"
    end = SessionRow(minutes=minutes, workers=len(crew.lanes), reason=reason)
    add(end)
    return end


def line(row: Row) -> str:
    """A row as one line of progress."""
    match row:
        case NodeRow():
            time_ = f"{row.ms:.4f} ms" if row.ms is not None else row.message[:60]
            how = "" if row.measured else " (known)"
            return f"{row.at:6.1f} s  {row.program} [{row.part}] {' > '.join(row.path)}: {row.outcome}{how} {time_}"
        case RepeatRow():
            return f"{row.at:6.1f} s  {row.program} again, round {row.round}: {row.ms} ms"
        case EpisodeRow():
            return f"{row.at:6.1f} s  {row.program} {row.policy} {row.seed}, {row.steps} steps: {row.best_ms} ms"
        case StateRow():
            return f"{row.at:6.1f} s  {row.program} {row.index}: {row.candidates} candidates, {row.cut} cut"
        case FailureRow():
            return f"{row.at:6.1f} s  {row.program} {row.what} failed: {row.message}"
    return f"{row.at:6.1f} s  {row.reason}"
