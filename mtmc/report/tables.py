"""Tables of benchmark results, for the terminal and for a README. Losses and failures are part of every
one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mtmc.bench.row import BenchHeader, BenchRow
from mtmc.bench.summary import LEVELS, Comparison, Summary, failures, losses, summarise
from mtmc.report.words import milliseconds, percent, times

WORST = 10
"""Losses listed one by one; the number of all is in the title."""


def bench_summary(rows: Sequence[BenchRow], header: BenchHeader | None = None) -> RenderableType:
    """Summary, worst losses, failures: what ``mtmc bench`` ends with."""
    summary = summarise(rows)
    parts: list[RenderableType] = [_overview(summary, header), _speed(summary)]
    if lost := losses(rows):
        parts.append(_losses(lost))
    if failed := failures(rows):
        parts.append(_failures(failed))
    return Group(*parts)


def _overview(summary: Summary, header: BenchHeader | None) -> Table:
    table = Table(title=_title(header), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    n = summary.problems
    table.add_row("correct", f"{summary.correct} of {n}")
    if summary.stock_checked:
        table.add_row("correct by KernelBench's rule", f"{summary.stock_correct} of {summary.stock_checked} checked")
    table.add_row("pure (no library compute)", f"{summary.pure} of {n}")
    table.add_row("work in generated kernels", percent(summary.generated_share))
    if summary.timed:
        table.add_row("fastest", ", ".join(f"{name} {count}" for name, count in summary.wins.items()))
    table.add_row("outcomes", ", ".join(f"{name} {count}" for name, count in summary.outcomes.items()))
    wall, lock = summary.median_wall_s, summary.median_gpu_lock_s
    table.add_row("median cost a problem", f"{wall or 0:.1f} s wall, {lock or 0:.1f} s of GPU lock")
    if summary.timed < summary.correct:
        table.add_row("not timed", f"{summary.correct - summary.timed} correct programs have no time")
    return table


def _title(header: BenchHeader | None) -> str:
    if header is None:
        return "Results"
    card = header.hardware.name if header.hardware else "no GPU: nothing is timed"
    versions = ", ".join(f"{name} {header.versions[name]}" for name in ("torch", "triton") if name in header.versions)
    return ", ".join(part for part in (header.suite, card, versions) if part)


def _speed(summary: Summary) -> Table:
    # Measures down, baselines across: it fits a terminal of 80 columns.
    table = Table(title="Speed: baseline / mtmc; failures count in every fast_p", title_justify="left")
    table.add_column("")
    table.add_column("against eager", justify="right")
    table.add_column("against torch.compile", justify="right")
    for name, *cells in zip(_MEASURES, _cells(summary.eager), _cells(summary.compiled), strict=True):
        table.add_row(name, *cells)
    return table


_MEASURES = (
    *(f"fast_{p:g}" for p in LEVELS),
    "geomean",
    "geomean, failures keep eager",
    "median",
    "slower, beyond the noise",
    "compared",
    "no baseline time",
)


def _cells(one: Comparison) -> list[str]:
    means = [times(value) for value in (one.geomean, one.geomean_all, one.median)]
    counts = [str(count) for count in (one.slower, one.compared, one.baseline_missing)]
    return [*(percent(value) for value in one.fast.values()), *means, *counts]


def _losses(lost: Sequence[BenchRow]) -> Table:
    shown = min(len(lost), WORST)
    which = f"the worst {shown} of {len(lost)}" if shown < len(lost) else str(shown)
    table = Table(title=f"Slower than eager or torch.compile: {which}", title_justify="left")
    table.add_column("problem", overflow="fold")
    for name in ("mtmc", "eager", "torch.compile", "vs eager", "vs compile"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in lost[:WORST]:
        table.add_row(
            Text(row.problem),
            milliseconds(row.mtmc_ms),
            milliseconds(row.eager_ms),
            milliseconds(row.compile_ms),
            times(row.speedup),
            times(row.compile_speedup),
        )
    return table


def _failures(failed: Sequence[BenchRow]) -> Table:
    table = Table(title=f"No correct program: {len(failed)}", title_justify="left")
    for name in ("problem", "outcome", "reason"):
        table.add_column(name)
    for row in failed:
        # Text: a message may hold square brackets, which rich would read as markup.
        table.add_row(Text(row.problem), row.outcome, Text(row.message))
    return table


def markdown_table(results: Mapping[str, Sequence[BenchRow]]) -> str:
    """One line a suite (its name is the key): the summary for a README."""
    head = (
        ["", "correct", "pure", "generated"]
        + [f"{what} vs {base}" for base in ("eager", "compile") for what in ("fast_1", "fast_2", "geomean", "median")]
        + ["slower than either"]
    )
    body = []
    for name, rows in results.items():
        s = summarise(rows)
        cells = [name, f"{s.correct}/{s.problems}", f"{s.pure}/{s.problems}", percent(s.generated_share)]
        for one in (s.eager, s.compiled):
            cells += [percent(one.fast["1"]), percent(one.fast["2"]), times(one.geomean), times(one.median)]
        body.append([*cells, str(len(losses(rows)))])
    return _markdown(head, body)


def markdown_problems(rows: Sequence[BenchRow]) -> str:
    """One line a problem, by number: the full list, so that no aggregate hides anything."""
    head = [
        "problem",
        "outcome",
        "pure",
        "generated",
        "mtmc ms",
        "eager ms",
        "compile ms",
        "vs eager",
        "vs compile",
    ]
    body = [
        [
            row.problem,
            row.outcome,
            "yes" if row.pure else "no",
            percent(row.generated_share),
            *(f"{ms:.4g}" if ms is not None else "–" for ms in (row.mtmc_ms, row.eager_ms, row.compile_ms)),
            times(row.speedup),
            times(row.compile_speedup),
        ]
        for row in sorted(rows, key=lambda row: row.number)
    ]
    return _markdown(head, body)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in (head, rule, *body)
    )
