"""Worker processes side by side: one that dies or hangs costs only its task.

Not ``concurrent.futures``: there a dead worker breaks the pool, and a hung one can't be killed with what it
started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import psutil  # type: ignore[import-untyped]

Task = TypeVar("Task")
Result = TypeVar("Result")
Kind = Literal["done", "crash", "timeout"]

POLL_SECONDS = 1.0
START_SECONDS = 300.0
"""Limit for a worker to import what it runs, before its first task's own time begins."""
RETIRE_SECONDS = 10.0
READY = "ready"


@dataclass(frozen=True)
class Ending(Generic[Task, Result]):
    """How one task ended. ``result`` is there exactly when ``kind`` is ``done``."""

    task: Task
    kind: Kind
    wall_s: float
    result: Result | None = None
    message: str = ""
    """Why there is no result, with the last line that the worker wrote."""


def run_tasks(
    tasks: Iterable[Task],
    function: Callable[[Task], Result],
    *,
    workers: int,
    timeout_s: float,
    tasks_per_worker: int = 10,
) -> Generator[Ending[Task, Result], None, None]:
    """Call ``function`` on every task in ``workers`` spawned processes; endings come as they happen.

    Args:
        tasks: picklable values.
        function: picklable, and must not raise: an exception ends its worker and counts as a crash.
        workers: processes side by side.
        timeout_s: wall seconds of one task until its worker is killed; the start of a worker is not counted.
        tasks_per_worker: a worker is replaced after so many tasks, since what user code leaves behind adds
            up.

    Closing the iterator, also by an exception such as Ctrl-C in its consumer, kills every worker with all
    that it started.
    """
    queue = deque(tasks)
    pool: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="mtmc-bench-") as logs:
        try:
            while queue or any(w.task is not None for w in pool):
                for worker in [w for w in pool if w.task is None]:
                    if not queue or worker.served >= tasks_per_worker:
                        worker.retire()
                        pool.remove(worker)
                while queue and sum(w.task is not None for w in pool) < workers:
                    idle = next((w for w in pool if w.task is None), None)
                    if idle is None:
                        pool.append(idle := _Worker(function, Path(logs)))
                    idle.give(queue.popleft())
                ready = wait([w.connection for w in pool], timeout=_patience(pool, timeout_s))
                for worker in list(pool):
                    ending = worker.look(worker.connection in ready, timeout_s)
                    if ending is not None:
                        if ending.kind != "done":
                            worker.end()
                            pool.remove(worker)
                        yield ending
            while pool:
                pool.pop().retire()
        finally:
            for worker in pool:
                worker.end()


def _patience(pool: list[_Worker], timeout_s: float) -> float:
    """Seconds until something must be looked at: the next deadline, or a poll for workers that died
    silently."""
    deadlines = [w.deadline(timeout_s) for w in pool if w.task is not None]
    return max(0.0, min(min(deadlines) - time.monotonic(), POLL_SECONDS))


@dataclass(eq=False)
class _Worker:
    """One spawned process, seen from the parent."""

    function: Callable[[Any], Any]
    logs: Path
    task: Any = None
    served: int = 0
    started: float = 0.0
    ready: bool = False
    """It has imported everything and takes tasks."""
    connection: Connection = field(init=False)
    process: BaseProcess = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        handle, name = tempfile.mkstemp(suffix=".log", dir=self.logs)
        os.close(handle)
        self.log = Path(name)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.function, name, os.getpid()))
        self.process.start()
        # Our copy must go, or the death of the worker would never close the pipe.
        theirs.close()

    def give(self, task: Any) -> None:
        self.task, self.started = task, time.monotonic()
        # A worker that is already dead is found by look().
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(task)

    def deadline(self, timeout_s: float) -> float:
        return self.started + (timeout_s if self.ready else START_SECONDS)

    def look(self, readable: bool, timeout_s: float) -> Ending | None:
        """The ending of this worker's task, if it has one by now."""
        if self.task is None:
            return None
        try:
            # A dead worker's last result may still be in the pipe.
            if readable or (not self.process.is_alive() and self.connection.poll()):
                message = self.connection.recv()
                if self.ready:
                    return self._finish("done", message)
                self.ready, self.started = True, time.monotonic()
                return None
        except (EOFError, OSError):
            readable = True
        if readable or not self.process.is_alive():
            self.process.join(POLL_SECONDS)
            return self._finish("crash", message=f"The worker process {self._cause()}.{self._last_words()}")
        if time.monotonic() > self.deadline(timeout_s):
            what = f"It was stopped after {timeout_s:.0f} s." if self.ready else "Its worker did not start."
            return self._finish("timeout", message=what + self._last_words())
        return None

    def _finish(self, kind: Kind, result: Any = None, message: str = "") -> Ending:
        task, self.task = self.task, None
        self.served += 1
        return Ending(task, kind, time.monotonic() - self.started, result, message)

    def _cause(self) -> str:
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
            # faulthandler ends with the outermost frame; its "Fatal Python error" line says more.
            said = next((line for line in lines if line.startswith("Fatal Python error")), lines[-1] if lines else "")
            return f" Its last words: {said.strip()[:300]}" if said else ""
        return ""

    def retire(self) -> None:
        """Let an idle worker end by itself, so that it removes its temporary files; then kill what is left."""
        self.connection.close()
        self.process.join(RETIRE_SECONDS)
        self.end()

    def end(self) -> None:
        """Kill the process and everything it started, in other sessions too."""
        pid = self.process.pid
        assert pid is not None
        # A process that has ended is already reaped, and its number may be another's: only its group is left.
        if self.process.exitcode is None:
            kill_family(pid)
        kill_group(pid)
        self.process.join(5)
        self.connection.close()


def kill_family(pid: int) -> None:
    """SIGKILL to a process and all its descendants, in whatever session they are."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that a worker leads: what it left behind when it died."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _serve(connection: Connection, function: Callable[[Any], Any], log: str, parent: int) -> None:
    """The worker: tasks in, results out, until the pipe closes."""
    # Its own group: a Ctrl-C in the terminal reaches the parent only, and one kill reaches all that it
    # starts.
    os.setsid()
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    # What user code prints would break the parent's terminal; the last line explains a crash.
    with open(log, "wb", buffering=0) as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    with contextlib.suppress(EOFError, BrokenPipeError):
        connection.send(READY)
        while True:
            connection.send(function(connection.recv()))


def _die_with(parent: int) -> None:
    """End this worker and its family when the parent is gone, even by SIGKILL."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    kill_family(os.getpid())
