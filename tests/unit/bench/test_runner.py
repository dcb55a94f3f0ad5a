from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import mtmc
from mtmc.bench.pool import run_tasks
from mtmc.bench.results import ResultFile, read
from mtmc.bench.row import BenchHeader, BenchRow
from mtmc.bench.runner import Finished, run_suite, store_rows, stored_rows
from mtmc.bench.suite import BenchProblem
from mtmc.data.hardware import H200
from mtmc.errors import BenchError, CaptureError, ProblemError
from mtmc.store.shards import export, merge
from mtmc.store.store import Store

HEADER = BenchHeader(
    suite="test",
    command="mtmc bench",
    started="now",
    hardware=H200,
    versions={"torch": "2.11"},
    flags={"steps": 4},
)


def problem(number: int, what: str = "fine") -> BenchProblem:
    return BenchProblem(suite="test", number=number, name=f"{number}_{what}", path="/dev/null")


def fine(**more: Any) -> dict[str, Any]:
    return {"outcome": "accepted", "correct": True, "eager_ms": 2.0, "mtmc_ms": 1.0, **more}


def solve(problem: BenchProblem, options: dict[str, Any]) -> dict[str, Any]:
    """Does what the problem's name says. Each call leaves a mark, so that tests see what ran."""
    folder = Path(options["folder"])
    with open(folder / "calls", "a") as calls:
        calls.write(f"{problem.number}\n")
    what = problem.name.split("_", 1)[1]
    match what:
        case "crash":
            print("about to jump", flush=True)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(7)
        case "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            (folder / "child").write_text(str(child.pid))
            time.sleep(600)
        case "orphan":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            (folder / "child").write_text(str(child.pid))
            os._exit(3)
        case "raise":
            raise RuntimeError("surprise")
        case "problem":
            raise ProblemError("no Model")
        case "capture":
            raise CaptureError("refused", file="a.py", line=3)
        case "quit":
            sys.exit("user code quits")
        case "invalid":
            return {"outcome": "accepted", "correct": False}
        case "slow":
            time.sleep(0.7)
    return fine(actions=(f"pid {os.getpid()}",), steps=3)


def run(tmp_path: Path, problems: list[BenchProblem], **options: Any) -> Finished:
    results = ResultFile(tmp_path / "out.jsonl", HEADER, options.pop("resume", None))
    try:
        settings = {"workers": 2, "timeout_s": 60.0} | options
        return run_suite(problems, solve, {"folder": str(tmp_path)}, results, **settings)
    finally:
        results.close()


def calls(tmp_path: Path) -> list[int]:
    return sorted(map(int, (tmp_path / "calls").read_text().split()))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Any, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_every_failure_is_a_row_and_the_run_goes_on(tmp_path: Path) -> None:
    kinds = ["crash", "exit", "raise", "problem", "capture", "quit", "invalid", "fine"]
    finished = run(tmp_path, [problem(n, kind) for n, kind in enumerate(kinds)])
    outcome = {name.split("_", 1)[1]: (row.outcome, row.message) for name, row in finished.rows.items()}
    assert finished.ran == len(kinds) and not finished.interrupted
    assert {kind: found[0] for kind, found in outcome.items()} == {
        "crash": "worker_crash",
        "exit": "worker_crash",
        "raise": "internal_error",
        "problem": "problem_error",
        "capture": "capture_error",
        "quit": "internal_error",
        "invalid": "internal_error",
        "fine": "accepted",
    }
    assert "SIGSEGV" in outcome["crash"][1] and "Segmentation fault" in outcome["crash"][1]
    assert "exit code 7" in outcome["exit"][1]
    assert "RuntimeError: surprise" in outcome["raise"][1] and "test_runner.py:" in outcome["raise"][1]
    assert outcome["capture"][1] == "a.py:3: refused"
    assert "user code quits" in outcome["quit"][1]
    header, rows = read(tmp_path / "out.jsonl")
    assert header == HEADER and rows == finished.rows
    assert all(row.wall_s > 0 for row in rows.values())


def test_a_hang_is_killed_with_its_children_in_other_sessions(tmp_path: Path) -> None:
    finished = run(tmp_path, [problem(1, "hang"), problem(2)], timeout_s=2.0)
    row = finished.rows["1_hang"]
    assert row.outcome == "timeout" and "2 s" in row.message and 2.0 <= row.wall_s < 12
    assert finished.rows["2_fine"].correct
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: gone(child))


def test_a_dead_worker_leaves_no_orphans(tmp_path: Path) -> None:
    finished = run(tmp_path, [problem(1, "orphan")])
    assert "exit code 3" in finished.rows["1_orphan"].message
    child = int((tmp_path / "child").read_text())
    assert wait_until(lambda: gone(child))


def test_resume_runs_only_what_is_missing(tmp_path: Path) -> None:
    run(tmp_path, [problem(1), problem(2, "raise")])
    finished = run(tmp_path, [problem(1), problem(2, "raise"), problem(3)])
    assert calls(tmp_path) == [1, 2, 3] and finished.ran == 1
    assert list(finished.rows) == ["1_fine", "2_raise", "3_fine"]
    again = run(tmp_path, [problem(1), problem(2, "raise")], retry_failed=True)
    assert calls(tmp_path) == [1, 2, 2, 3] and again.ran == 1
    assert len(read(tmp_path / "out.jsonl")[1]) == 3


def test_a_half_written_line_is_dropped_on_resume(tmp_path: Path) -> None:
    run(tmp_path, [problem(1), problem(2)])
    path = tmp_path / "out.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert len(read(path)[1]) == 1
    finished = run(tmp_path, [problem(1), problem(2)])
    assert finished.ran == 1 and len(finished.rows) == 2
    assert len(path.read_bytes().splitlines()) == 3 and len(read(path)[1]) == 2


def test_another_configuration_is_refused_and_fresh_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    results = ResultFile(path, HEADER)
    results.append(BenchRow(problem="1_a", number=1, **fine()))
    results.close()
    other = HEADER.model_copy(update={"flags": {"steps": 8}})
    for resume in (None, True):
        with pytest.raises(BenchError, match="--steps: 4 there, 8 now"):
            ResultFile(path, other, resume)
    assert len(read(path)[1]) == 1
    fresh = ResultFile(path, other, resume=False)
    fresh.close()
    (old,) = tmp_path.glob("out.jsonl.old-*")
    assert len(read(old)[1]) == 1 and read(path) == (other, {})


def test_fingerprint_ignores_when_and_how_it_was_typed_only() -> None:
    same = HEADER.model_copy(update={"command": "other", "started": "later"})
    assert same.fingerprint == HEADER.fingerprint
    for change in ({"suite": "x"}, {"hardware": None}, {"versions": {"torch": "2.12"}}, {"flags": {}}):
        assert HEADER.model_copy(update=change).fingerprint != HEADER.fingerprint


def test_unusable_result_files(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("hello\n")
    with pytest.raises(BenchError, match="not a result file"):
        ResultFile(tmp_path / "bad.jsonl", HEADER)
    assert (tmp_path / "bad.jsonl").read_text() == "hello\n"
    with pytest.raises(BenchError, match="can't be written"):
        ResultFile(tmp_path / "bad.jsonl" / "out.jsonl", HEADER)
    with pytest.raises(BenchError, match="can't be read"):
        read(tmp_path / "missing.jsonl")


def test_resume_from_merged_shards_on_another_machine(tmp_path: Path) -> None:
    here, there = Store.open(tmp_path / "here.sqlite"), Store.open(tmp_path / "there.sqlite")
    results = ResultFile(tmp_path / "out.jsonl", HEADER)
    run_suite(
        [problem(1), problem(2)],
        solve,
        {"folder": str(tmp_path)},
        results,
        workers=1,
        timeout_s=60,
        keep=store_rows(here, HEADER.fingerprint),
    )
    export(here, tmp_path / "shards")
    merge(there, [tmp_path / "shards"])
    known = stored_rows(there, HEADER.fingerprint)
    assert sorted(row.problem for row in known) == ["1_fine", "2_fine"]
    assert known[0] == results.rows[known[0].problem]
    assert stored_rows(there, "another fingerprint") == []


def test_workers_run_side_by_side_and_are_replaced(tmp_path: Path) -> None:
    rows = run(tmp_path, [problem(n, "slow") for n in range(6)], tasks_per_worker=2).rows.values()
    pids = [row.actions[0] for row in rows]
    assert len(set(pids)) >= 3 and max(pids.count(pid) for pid in pids) <= 2


INTERRUPTED = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_runner import problem, run
if __name__ == "__main__":
    folder = Path({folder!r})
    finished = run(folder, [problem(1), problem(2, "hang")])
    (folder / "finished").write_text(f"{{finished.interrupted}} {{len(finished.rows)}}")
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_keeps_rows_and_kills_workers(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    root = str(Path(mtmc.__file__).parents[1])
    process = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": root})
    out, child = tmp_path / "out.jsonl", tmp_path / "child"
    assert wait_until(lambda: child.exists() and child.read_text() and out.read_bytes().count(b"\n") == 2, 80)
    workers = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(how)
    process.wait(20)
    # After SIGKILL the workers notice by themselves.
    assert wait_until(lambda: all(gone(pid) for pid in [*workers, int(child.read_text())]))
    assert list(read(out)[1]) == ["1_fine"]
    if how != signal.SIGKILL:
        assert (tmp_path / "finished").read_text() == "True 1"


def _identity(value: int) -> int:
    return value


def _with_exit(folder: Path) -> None:
    atexit.register((folder / "cleaned").touch)


def test_an_idle_worker_cleans_up(tmp_path: Path) -> None:
    (ending,) = run_tasks([tmp_path], _with_exit, workers=1, timeout_s=30)
    assert ending.kind == "done" and (tmp_path / "cleaned").exists()


def test_pool_without_tasks_starts_nothing() -> None:
    assert list(run_tasks([], _identity, workers=2, timeout_s=1)) == []
