"""``mtmc bench kernelbench | table | economy | economy-report``: run a benchmark, and print its results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtmc.cli.optimize import require_triton
from mtmc.errors import BenchError, Exit

if TYPE_CHECKING:
    from mtmc.bench.row import BenchHeader, BenchRow
    from mtmc.bench.runner import Finished
    from mtmc.bench.suite import BenchProblem
    from mtmc.bench.worker import BenchOptions

MIN_TIMEOUT_S = 600.0


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Run a benchmark, or print the table of a result file.")
    group.command("kernelbench")(kernelbench)
    group.command("table")(table)
    group.command("economy")(economy)
    group.command("economy-report")(economy_report)
    app.add_typer(group, name="bench")


def kernelbench(
    root: Annotated[Path, typer.Option(help="Your KernelBench checkout.")],
    level: Annotated[int, typer.Option(min=1, help="1 to 4.")],
    problems: Annotated[str | None, typer.Option(help="Numbers such as 1-20,33; default: all.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Result file; default: kernelbench_level<N>_<card>.jsonl."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes side by side; 0: one for every two cores, at most 8.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Judged steps a problem, at most.")] = 8,
    seconds: Annotated[float, typer.Option(min=0, help="Seconds of search a problem, at most.")] = 60.0,
    policy: Annotated[str, typer.Option(help="Who chooses the actions.")] = "heuristic",
    seed: Annotated[int, typer.Option(help="Of the policy.")] = 0,
    patience: Annotated[int, typer.Option(min=0, help="Slower steps in a row before it goes back.")] = 2,
    pure: Annotated[bool, typer.Option("--pure", help="No library compute.")] = False,
    compile_max: Annotated[bool, typer.Option("--compile-max", help="Also time torch.compile max-autotune.")] = False,
    compile_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for torch.compile of one problem; beyond it the row says so.")
    ] = 180.0,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the generated files there.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds a problem until its worker is killed; default: 600 or more."),
    ] = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--fresh",
            help="--resume: continue the file, and take rows from the store too (merged shards). "
            "--fresh: set an old file aside. Default: continue the file if its configuration is the same.",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="On resuming, run again what is not correct.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Rows as JSON lines and a summary object on stdout.")] = False,
) -> None:
    """Run KernelBench: one JSON line a problem as it finishes, a table at the end. Ctrl-C keeps what was
    found."""
    from mtmc.bench.kernelbench import KernelBench
    from mtmc.bench.suite import select
    from mtmc.bench.worker import BenchOptions
    from mtmc.search.driver import make_policy

    suite = KernelBench(root, level)
    chosen = select(suite.problems(), problems)
    # What would fail for every problem fails here, once.
    require_triton()
    make_policy(policy, seed)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    workers = workers or min(8, max(1, (os.cpu_count() or 2) // 2))
    options = BenchOptions(
        steps=steps,
        seconds=seconds,
        policy=policy,
        seed=seed,
        patience=patience,
        pure=pure,
        compile_max=compile_max,
        compile_timeout_s=compile_timeout,
        save=str(save.resolve()) if save else None,
        fresh=resume is False,
        shared_card=workers > 1,
        command=shlex.join(["mtmc", *sys.argv[1:]]),
    )
    header = _header(suite.name, options.flags(), options.command)
    path = out or Path(_default_name(header))
    timeout = timeout or max(MIN_TIMEOUT_S, 5 * seconds)
    finished = _run(chosen, options, header, path, workers, timeout, resume, retry_failed, as_json)
    rows = list(finished.rows.values())
    _show(rows, header, as_json)
    if finished.interrupted:
        typer.echo(f"Interrupted; {path} keeps {len(rows)} rows. The same command continues.", err=True)
        raise typer.Exit(Exit.INTERRUPTED)


def _run(
    chosen: Sequence[BenchProblem],
    options: BenchOptions,
    header: BenchHeader,
    path: Path,
    workers: int,
    timeout_s: float,
    resume: bool | None,
    retry_failed: bool,
    as_json: bool,
) -> Finished:
    from rich.console import Console

    from mtmc.bench.results import ResultFile
    from mtmc.bench.runner import run_suite, store_rows, stored_rows
    from mtmc.bench.worker import run_problem
    from mtmc.report.progress import row_line
    from mtmc.store.store import Store

    progress = Console(stderr=True)
    with Store.open() as store:
        results = ResultFile(path, header, resume)
        if resume:
            known = [row for row in stored_rows(store, header.fingerprint) if row.problem not in results.rows]
            results.extend(known)
        done = sum(p.name in results.rows for p in chosen)
        progress.print(f"{len(chosen)} problems, {done} of them done, {workers} workers, rows in {path}")

        def show(row: BenchRow) -> None:
            nonlocal done
            done += row.problem not in shown
            shown.add(row.problem)
            progress.print(row_line(row, done, len(chosen)))
            if as_json:
                typer.echo(row.model_dump_json())

        shown = set(results.rows)
        try:
            return run_suite(
                chosen,
                run_problem,
                options,
                results,
                workers=workers,
                timeout_s=timeout_s,
                retry_failed=retry_failed,
                on_row=show,
                keep=store_rows(store, header.fingerprint),
            )
        finally:
            results.close()


def _show(rows: Sequence[BenchRow], header: BenchHeader, as_json: bool) -> None:
    from rich.console import Console

    from mtmc.bench.summary import summarise
    from mtmc.report.tables import bench_summary

    if as_json:
        typer.echo(summarise(rows).model_dump_json())
    else:
        Console().print(bench_summary(rows, header))


def _header(suite: str, flags: dict[str, Any], command: str) -> BenchHeader:
    from mtmc.bench.row import BenchHeader
    from mtmc.data.hardware import detect
    from mtmc.data.step import library_versions
    from mtmc.search.driver import versions

    ours = versions().model_dump(mode="json", exclude={"schema_version"})
    return BenchHeader(
        suite=suite,
        command=command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=detect(),
        versions=library_versions() | ours,
        flags=flags,
    )


def _default_name(header: BenchHeader) -> str:
    card = header.hardware.name.removeprefix("NVIDIA ").lower().replace(" ", "-") if header.hardware else "cpu"
    return f"{header.suite.replace('/', '_')}_{card}.jsonl"


def table(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Result files of mtmc bench.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown: one line a file.")] = False,
    every: Annotated[bool, typer.Option("--all", help="With --markdown: also one line a problem.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One summary object a file.")] = False,
) -> None:
    """Print the summary of result files."""
    from rich.console import Console

    from mtmc.bench.results import read
    from mtmc.bench.summary import summarise
    from mtmc.report.tables import bench_summary, markdown_problems, markdown_table

    loaded = [read(file) for file in files]
    if any(not rows for _, rows in loaded):
        raise BenchError("A result file holds no rows yet; run the benchmark first.")
    if as_json:
        for _, rows in loaded:
            typer.echo(summarise(list(rows.values())).model_dump_json())
    elif markdown:
        typer.echo(markdown_table({h.suite: list(rows.values()) for h, rows in loaded}), nl=False)
        for header, rows in loaded if every else ():
            typer.echo(f"\n### {header.suite}\n\n{markdown_problems(list(rows.values()))}", nl=False)
    else:
        for header, rows in loaded:
            Console().print(bench_summary(list(rows.values()), header))


def economy(
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the rows; continued if it is there.")],
    examples: Annotated[Path, typer.Option(help="Folder of the examples.")] = Path("examples"),
    programs: Annotated[str | None, typer.Option(help="Names, with commas; default: eight of ours.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Wall time, earlier sessions of the file included.")] = 8.0,
    workers: Annotated[
        int, typer.Option(min=0, help="Lanes side by side; 0: one for every two cores, at most one a program.")
    ] = 0,
    depth: Annotated[int, typer.Option(min=1, max=2, help="Decisions that are tried out.")] = 2,
    limit: Annotated[int, typer.Option(min=0, help="Children of one state at most; 0: all.")] = 0,
    seeds: Annotated[int, typer.Option(min=0, help="Random episodes a program; 0: no episodes.")] = 3,
    repeats: Annotated[int, typer.Option(min=0, help="How often the noise sample is timed again.")] = 5,
) -> None:
    """Measure what judging costs and tells: all first decisions, a sample of the second ones. Ctrl-C keeps every row,
    and the same command continues."""
    from rich.console import Console

    from mtmc.bench.economy.crew import LaneOptions, Processes
    from mtmc.bench.economy.plan import PROGRAMS
    from mtmc.bench.economy.rows import SUITE, Book, EconomyOptions, Row
    from mtmc.bench.economy.run import line, run

    names = tuple(name.strip() for name in programs.split(",")) if programs else PROGRAMS
    if missing := [name for name in names if not (examples / f"{name}.py").is_file()]:
        raise BenchError(f"There is no {missing[0]}.py in {examples}; give --examples, or other --programs.")
    require_triton()
    options = EconomyOptions(programs=names, depth=2 if depth == 2 else 1, limit=limit, seeds=seeds, repeats=repeats)
    command = shlex.join(["mtmc", *sys.argv[1:]])
    book = Book(out, _header(SUITE, options.model_dump(mode="json"), command))
    lanes = workers or min(len(names), max(1, (os.cpu_count() or 2) // 2))
    console = Console(stderr=True, highlight=False)
    console.print(f"{len(names)} programs, {len(book.rows)} rows known, {lanes} lanes, {minutes:g} min, rows in {out}")
    started = LaneOptions(examples=str(examples.resolve()), shared_card=lanes > 1, command=command)

    def show(row: Row) -> None:
        console.print(line(row), markup=False, soft_wrap=True)

    try:
        with Processes(started, lanes, out.with_name(out.name + ".log")) as crew:
            end = run(crew, options, book, minutes, on_row=show)
    finally:
        book.close()
    console.print(f"{end.reason}: {len(book.rows)} rows in {out}; next: mtmc bench economy-report {out} -o PAGE")
    if end.reason == "interrupted":
        raise typer.Exit(Exit.INTERRUPTED)


def economy_report(
    file: Annotated[Path, typer.Argument(help="Rows of mtmc bench economy.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Markdown page; default: stdout.")] = None,
) -> None:
    """Write the page of a run from its rows."""
    from mtmc.bench.economy.page import page
    from mtmc.bench.economy.rows import read
    from mtmc.search.output import write_whole

    text = page(*read(file))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_whole(out, text)
