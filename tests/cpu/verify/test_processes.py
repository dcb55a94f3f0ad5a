"""Processes: whatever happens to the parent, no child is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mtmc.verify.worker import Fault, Worker

PARENT = """
import sys, time
from pathlib import Path
from mtmc.verify.worker import Worker
workers = [Worker("build", "cpu", Path.cwd()) for _ in range(2)]
for worker in workers:
    worker.wait_ready()
print(*(worker.pid for worker in workers), flush=True)
{then}
"""


NOTHING = {"source": "", "signatures": [], "capability": 90, "launchers": False}


def gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("then", "number"),
    [
        ("time.sleep(60)", signal.SIGKILL),
        ("time.sleep(60)", signal.SIGINT),
        (
            "workers[0].call('build', 60, source='while True: pass', signatures=[], capability=90, launchers=False)",
            signal.SIGINT,
        ),
        ("raise SystemExit", None),
    ],
    ids=["killed", "interrupted", "interrupted in a call", "exits without closing"],
)
def test_no_child_outlives_its_parent(then: str, number: int | None, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert len(pids) == 2
    if number is not None:
        time.sleep(0.5)
        parent.send_signal(number)
    parent.wait(timeout=20)
    assert gone(pids)


def test_a_worker_is_replaced_and_tells_so(tmp_path: Path) -> None:
    worker = Worker("build", "cpu", tmp_path)
    try:
        worker.wait_ready()
        assert worker.starts == 1 and worker.pid is not None
        first = worker.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(Fault, match="SIGKILL") as caught:
            worker.call("build", 10, **NOTHING)
        assert caught.value.kind == "crash" and worker.pid is None
        assert worker.call("build", 30, **NOTHING) == []
        assert worker.starts == 2 and worker.pid != first
    finally:
        worker.close()


def test_a_child_gets_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    worker = Worker("build", "cpu", tmp_path)
    try:
        worker.wait_ready()
        names = psutil.Process(worker.pid).environ()
        assert "MY_API_TOKEN" not in names and "HTTPS_PROXY" not in names and "PATH" in names
    finally:
        worker.close()
