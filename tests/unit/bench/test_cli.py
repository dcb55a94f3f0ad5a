from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import mtmc.bench.worker
from mtmc.bench.results import read
from mtmc.bench.row import BenchRow
from mtmc.bench.suite import BenchProblem
from mtmc.bench.worker import BenchOptions, row_fields
from mtmc.cli import bench, store
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, ErrorStats, Evaluation, Outcome, Timing
from mtmc.data.hardware import H200
from mtmc.errors import MtmcError, UsageError
from mtmc.ir.program import Program
from mtmc.problem.problem import Problem
from mtmc.search.node import Node
from mtmc.search.result import STOP, Progress, SearchResult
from mtmc.settings import get_settings


def solve(problem: BenchProblem, options: BenchOptions) -> dict[str, Any]:
    if problem.number == 2:
        os._exit(1)
    return {"outcome": "accepted", "correct": True, "eager_ms": 3.0, "mtmc_ms": 1.5, "steps": options.steps}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[typer.Typer]:
    monkeypatch.setenv("MTMC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(mtmc.bench.worker, "run_problem", solve)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "kb" / "level1"
    folder.mkdir(parents=True)
    for number in (1, 2, 3):
        (folder / f"{number}_p.py").write_text("")
    get_settings.cache_clear()
    app = typer.Typer()
    bench.register(app)
    store.register(app)
    yield app
    get_settings.cache_clear()


def call(app: typer.Typer, *args: str, error: type[MtmcError] | None = None) -> Result:
    result = CliRunner().invoke(app, list(args))
    if error is None:
        assert result.exit_code == 0, result.output
    else:
        assert isinstance(result.exception, error)
    return result


BENCH = ("bench", "kernelbench", "--root", "kb", "--level", "1", "--workers", "1", "--out", "out.jsonl")


def test_bench_runs_resumes_and_prints(app: typer.Typer, tmp_path: Path) -> None:
    result = call(app, *BENCH, "--problems", "1-2", "--steps", "5")
    assert "1 of 2" in result.output and "worker_crash" in result.output
    header, rows = read(tmp_path / "out.jsonl")
    assert header.suite == "kernelbench/level1" and header.flags["steps"] == 5
    assert rows["1_p"].steps == 5 and rows["1_p"].speedup == 2.0

    lines = [json.loads(line) for line in call(app, *BENCH, "--steps", "5", "--json").stdout.splitlines()]
    assert [line.get("problem") for line in lines[:-1]] == ["3_p"]
    assert lines[-1]["problems"] == 3 and lines[-1]["correct"] == 2

    # A new file takes the rows that the store kept, but only when asked.
    call(app, *BENCH[:-1], "second.jsonl", "--steps", "5", "--resume")
    assert list(read(tmp_path / "second.jsonl")[1]) == ["1_p", "2_p", "3_p"]

    table = call(app, "bench", "table", "out.jsonl", "second.jsonl").output
    assert table.count("2 of 3") == 2
    markdown = call(app, "bench", "table", "out.jsonl", "--markdown", "--all").output
    assert "| kernelbench/level1 | 2/3 |" in markdown and "| 2_p | worker_crash |" in markdown
    assert json.loads(call(app, "bench", "table", "out.jsonl", "--json").output)["eager"]["geomean"] == 2.0


def test_bench_refuses_nonsense(app: typer.Typer) -> None:
    call(app, *BENCH, "--policy", "magic", error=UsageError)
    call(app, *BENCH, "--problems", "7", error=UsageError)


def test_store_commands(app: typer.Typer, tmp_path: Path) -> None:
    call(app, *BENCH, "--problems", "1")
    assert json.loads(call(app, "store", "info", "--json").output)["results"] == 1
    assert "1 rows in 1 file in shards" in call(app, "store", "export", "shards").output
    other = ("--store", "other.sqlite")
    assert json.loads(call(app, "store", "merge", "shards", *other, "--json").output)["new"] == 1
    assert "0 new rows" in call(app, "store", "merge", "shards", *other).output
    assert "1 results" in call(app, "store", "info", *other).output


def searched(outcome: Outcome = Outcome.ACCEPTED) -> SearchResult:
    """What the search driver answers."""

    def stats(error: float) -> ErrorStats:
        fields = {"norm": error, "reference_norm": 2 * error, "allowed_norm": 4 * error}
        zero = dict.fromkeys(("worst", "reference_worst", "allowed_worst"), 0.0)
        return ErrorStats(input_set="s", output="o", **fields, **zero)

    right = outcome is Outcome.ACCEPTED
    best = Evaluation(
        outcome=outcome,
        message="" if right else "error [1e-3]",
        timing=Timing(samples_ms=(1.0,)) if right else None,
        reference_timing=Timing(samples_ms=(4.0,)),
        errors=(stats(1e-7), stats(3e-7)),
        flags=("odd",),
    )
    program = Program(buffers=(), kernels=(), outputs=())
    return SearchResult(
        problem=Problem(name="p", text="x", flags=("scaled",)),
        captured=program,
        node=Node(program, Candidate(source="x = 1"), best, ("tile k0", "fuse k0 and k1")),
        best=best,
        baselines=Baselines(eager=Timing(samples_ms=(5.0,)), compiled=Timing(samples_ms=(2.0,))),
        progress=(
            Progress(0, "as captured", "accepted"),
            Progress(1, "tile k0", "accepted"),
            Progress(2, "stop", STOP),
        ),
        hardware=H200,
        notes=("fell back",),
        wall_s=9.0,
        gpu_lock_s=1.25,
    )


def test_fields_of_a_row() -> None:
    row = BenchRow(problem="p", number=1, **row_fields(searched()))
    assert row.correct and row.pure
    # Eager as measured beside the final program, not the earlier baseline.
    assert (row.eager_ms, row.compile_ms, row.mtmc_ms) == (4.0, 2.0, 1.0)
    assert (row.error, row.eager_error) == (3e-7, 6e-7)
    assert (row.steps, row.wall_s, row.gpu_lock_s) == (1, 9.0, 1.25)
    assert row.actions == ("tile k0", "fuse k0 and k1") and row.flags == ("odd", "scaled", "fell back")


def test_a_wrong_result_is_a_row_with_its_reason() -> None:
    row = BenchRow(problem="p", number=1, **row_fields(searched(Outcome.WRONG_RESULT)))
    assert not row.correct and not row.pure and row.mtmc_ms is None and row.generated_share is None
    assert row.message == "error [1e-3]"
