"""One line a step while a search runs, the last line that says who won, and one line a benchmark problem."""

from __future__ import annotations

from rich.text import Text

from mtmc.bench.row import BenchRow
from mtmc.data.evaluation import Outcome
from mtmc.report.words import milliseconds, times
from mtmc.search.result import STOP, Progress, SearchResult

GAIN = "bold green"
LOSS = "bold yellow"


def step_line(step: Progress, best: float | None = None) -> Text:
    """One step: index, action, outcome, speed against eager, best speedup so far (None: nothing is timed)."""
    line = Text(f"{step.index:>3}  ", style="dim") + Text(step.action)
    if step.outcome == STOP:
        return line
    if step.outcome != Outcome.ACCEPTED:
        return line + Text(f"  {step.outcome}: {_one_line(step.message)}", style="red")
    if step.ms is not None:
        fast = step.speedup is not None and step.speedup > 1
        line += Text(f"  {milliseconds(step.ms)}  {times(step.speedup)} eager", style="green" if fast else "")
    elif step.estimate_ms is not None:
        line += Text(f"  correct, estimated {milliseconds(step.estimate_ms)}", style="cyan")
    else:
        line += Text("  correct", style="green")
    if not step.measured:
        line += Text("  known", style="dim")
    return line + Text(f"  best {times(best)}" if best is not None else "", style="bold")


def winner_line(result: SearchResult) -> Text:
    """The last line of ``mtmc optimize``: who won, with every time measured, torch.compile included."""
    if not result.correct:
        return Text(f"No correct program: {_one_line(result.best.message)}", style="bold red")
    ms = result.ms
    if ms is None:
        return Text(f"Nothing was timed: no GPU here.{_estimates(result)}", style=LOSS)
    maximum = result.baselines.compiled_max
    rivals = {
        "eager": result.eager_ms,
        "torch.compile": result.compile_ms,
        "torch.compile max-autotune": maximum.median_ms if maximum else None,
    }
    parts = [f"mtmc {milliseconds(ms)}"]
    parts += [f"{name} {milliseconds(own)} ({times(own / ms)})" for name, own in rivals.items() if own is not None]
    if result.baselines.compile_error:
        parts.append(f"torch.compile failed: {_one_line(result.baselines.compile_error)[:120]}")
    verdict = f"{result.winner} wins"
    if result.winner != "mtmc":
        verdict += ", nothing here was faster"
    return Text(f"{verdict}: {', '.join(parts)}", style=GAIN if result.winner == "mtmc" else LOSS)


def _estimates(result: SearchResult) -> str:
    """Roofline estimates of the program as captured and of the final one, said to be estimates."""
    before = result.progress[0].estimate_ms if result.progress else None
    after = result.best.estimate_ms
    if before is None or after is None:
        return ""
    return f" Roofline estimate, not measured: {milliseconds(before)} as captured, {milliseconds(after)} now."


def row_line(row: BenchRow, done: int, total: int) -> Text:
    """One finished benchmark problem."""
    line = Text(f"{done:>4}/{total}  ", style="dim") + Text(row.problem)
    if not row.correct:
        return line + Text(f"  {row.outcome}: {_one_line(row.message)}", style="red")
    if row.mtmc_ms is None:
        return line + Text("  correct, not timed", style="green")
    return line + Text(
        f"  {milliseconds(row.mtmc_ms)}  {times(row.speedup)} eager  {times(row.compile_speedup)} compile"
        f"  {row.steps} steps  {row.wall_s:.0f} s",
        style="green" if (row.speedup or 0) > 1 else "yellow",
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
