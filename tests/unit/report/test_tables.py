from __future__ import annotations

import re

from rich.console import Console

from mtmc.bench.row import BenchHeader, BenchRow
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, Outcome, Timing
from mtmc.data.hardware import H200
from mtmc.ir.program import Program
from mtmc.problem.problem import Problem
from mtmc.report.progress import row_line, step_line, winner_line
from mtmc.report.tables import bench_summary, markdown_problems, markdown_table
from mtmc.report.words import milliseconds, percent, times
from mtmc.search.node import Node
from mtmc.search.result import STOP, Progress, SearchResult


def row(number: int, mtmc: float, **more: object) -> BenchRow:
    fields = {
        "outcome": "accepted",
        "correct": True,
        "eager_ms": 2.0,
        "compile_ms": 1.5,
        "mtmc_ms": mtmc,
        **more,
    }
    return BenchRow(problem=f"{number}_p", number=number, **fields)  # type: ignore[arg-type]


ROWS = [
    row(1, 1.0, pure=True, generated_share=1.0),
    row(2, 4.0, generated_share=0.5),
    row(3, 1.0, mtmc_ms=None, outcome="wrong_result", correct=False, message="error [1e-3] above 2e-7"),
]


def shown(renderable: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_summary_shows_losses_and_failures_with_reasons() -> None:
    header = BenchHeader(suite="kernelbench/level1", command="", started="", hardware=H200, versions={"torch": "2.11"})
    text = shown(bench_summary(ROWS, header))
    assert "kernelbench/level1, NVIDIA H200, torch 2.11" in text
    assert "2 of 3" in text and "1 of 3" in text
    assert "2_p" in text and "0.50x" in text
    assert re.search(r"fast_1 +│ +33% │ +33% │", text) and re.search(r"slower.* 1 │ +1 │", text)
    assert "wrong_result" in text and "error [1e-3] above 2e-7" in text


def test_summary_without_times_says_so() -> None:
    text = shown(bench_summary([row(1, 1.0, mtmc_ms=None, eager_ms=None, compile_ms=None)]))
    assert "1 correct programs have no time" in text and "–" in text


def test_long_lists_of_losses_say_how_many_there_are() -> None:
    assert "the worst 10 of 15" in shown(bench_summary([row(n, 3.0 + n) for n in range(15)]))


def test_markdown() -> None:
    text = markdown_table({"level 1": ROWS})
    lines = text.splitlines()
    assert len(lines) == 3 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| level 1 | 2/3 | 1/3 | 75% | 33% | 0% | 1.00x |") and lines[2].endswith("| 1 |")
    every = markdown_problems(list(reversed(ROWS))).splitlines()
    assert [line.split(" | ")[0] for line in every[2:]] == ["| 1_p", "| 2_p", "| 3_p"]


def step(**fields: object) -> Progress:
    return Progress(**{"index": 3, "action": "fuse k0 [x]", "outcome": "accepted", **fields})  # type: ignore[arg-type]


def test_step_lines() -> None:
    good = step(ms=0.05, speedup=2.0)
    assert step_line(good, 2.5).plain == "  3  fuse k0 [x]  50 µs  2.00x eager  best 2.50x"
    assert step_line(step(ms=0.05, speedup=2.0, measured=False)).plain.endswith("eager  known")
    bad = step(outcome="build_error", message="line 3:\n  no")
    assert step_line(bad, None).plain == "  3  fuse k0 [x]  build_error: line 3: no"
    assert "estimated 1 ms" in step_line(step(estimate_ms=1.0)).plain
    assert step_line(step(action="stop", outcome=STOP), 1.5).plain == "  3  stop"


def result(
    ms: float | None, baselines: Baselines, estimates: tuple[float, float] | None = None, wrong: str = ""
) -> SearchResult:
    before, after = estimates or (None, None)
    best = Evaluation(
        outcome=Outcome.WRONG_RESULT if wrong else Outcome.ACCEPTED,
        message=wrong,
        timing=Timing(samples_ms=(ms,)) if ms else None,
        estimate_ms=after,
    )
    program = Program(buffers=(), kernels=(), outputs=())
    node = Node(program, Candidate(source="x"), best)
    start = Progress(0, "as captured", "accepted", estimate_ms=before)
    return SearchResult(Problem(name="p"), program, node, best, baselines, (start,), H200)


def test_the_last_line_says_who_won() -> None:
    one = Timing(samples_ms=(1.0,))
    both = Baselines(eager=Timing(samples_ms=(2.0,)), compiled=Timing(samples_ms=(0.5,)))
    assert winner_line(result(1.0, both)).plain == (
        "torch.compile wins, nothing here was faster: mtmc 1 ms, eager 2 ms (2.00x), torch.compile 0.5 ms (0.50x)"
    )
    lost = winner_line(result(0.5, Baselines(eager=one, compile_error="out of\nmemory"))).plain
    assert lost == "mtmc wins: mtmc 0.5 ms, eager 1 ms (2.00x), torch.compile failed: out of memory"
    assert "max-autotune 1 ms (2.00x)" in winner_line(result(0.5, Baselines(eager=one, compiled_max=one))).plain


def test_the_last_line_never_sells_an_estimate_as_a_time() -> None:
    line = winner_line(result(None, Baselines(), (2.0, 1.0))).plain
    assert "Nothing was timed" in line and "not measured: 2 ms as captured, 1 ms now" in line and "wins" not in line
    assert winner_line(result(None, Baselines())).plain == "Nothing was timed: no GPU here."
    assert winner_line(result(None, Baselines(), wrong="bad")).plain == "No correct program: bad"


def test_row_lines() -> None:
    assert row_line(ROWS[0], 1, 3).plain == "   1/3  1_p  1 ms  2.00x eager  1.50x compile  0 steps  0 s"
    assert "wrong_result: error [1e-3]" in row_line(ROWS[2], 3, 3).plain


def test_words() -> None:
    assert [percent(x) for x in (None, 0.0, 0.004, 0.5, 0.999, 1.0)] == [
        "–",
        "0%",
        "0.4%",
        "50%",
        "99.9%",
        "100%",
    ]
    assert [milliseconds(x) for x in (None, 0.0123, 1.23456)] == ["–", "12.3 µs", "1.235 ms"]
    assert [times(x) for x in (None, 1.234, 123.4)] == ["–", "1.23x", "123x"]
