"""The lanes as processes side by side, each with its own judge; the judges share the card by its lock."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtmc.bench.economy.lane import Lane, Opened
from mtmc.bench.economy.plan import Job
from mtmc.bench.economy.rows import Row
from mtmc.bench.economy.run import Done
from mtmc.bench.pool import kill_family
from mtmc.data.record import Record

if TYPE_CHECKING:
    from mtmc.store.store import Store


END_S = 10.0
"""For all lanes to end what they do when the run is over; then they are killed."""


class LaneOptions(Record):
    """What a lane is started with; picklable."""

    examples: str
    device: str | None = None
    shared_card: bool = True
    command: str = ""


@dataclass
class Opener:
    """Opens examples by name with this process's real judge."""

    options: LaneOptions
    stack: ExitStack = field(default_factory=ExitStack)
    _captured: dict[str, Opened] = field(default_factory=dict)
    _store: Store | None = None

    def __call__(self, name: str) -> Opened:
        """Raises: ProblemError, CaptureError, JudgeError: the example is not usable."""
        from mtmc.bench.worker import BenchOptions, bench_judge
        from mtmc.data.hardware import H200, detect
        from mtmc.problem.problem import load_problem
        from mtmc.search.driver import capture_quietly, probed, worker_pool
        from mtmc.search.rehearsal import Rehearsal
        from mtmc.settings import get_settings
        from mtmc.store.store import Store as RealStore
        from mtmc.verify.device import is_cuda, resolve
        from mtmc.verify.judge import Judge as RealJudge

        options = bench_judge(BenchOptions(shared_card=self.options.shared_card))
        device = resolve(self.options.device)
        self.stack.close()  # the judge of the program before, whose memory the card needs
        self._store = self._store or RealStore.open()
        if name not in self._captured:
            problem = load_problem(Path(self.options.examples) / f"{name}.py")
            card = detect(int(device.partition(":")[2] or 0)) if is_cuda(device) else None
            program = capture_quietly(problem)
            rehearsal = None if card else Rehearsal.of(problem, program, get_settings().interpret_elements)
            pool = worker_pool(device, options)
            judge = RealJudge(rehearsal.problem if rehearsal else problem, options=options, pool=pool)
            if card is not None:
                program, _ = probed(program, judge)
            protocol = options.model_dump(mode="json")
            self._captured[name] = Opened(problem, program, judge, card or H200, card, protocol, self._store, rehearsal)
        else:
            opened = self._captured[name]
            opened.judge = RealJudge(opened.judged_problem, options=options, pool=worker_pool(device, options))
        self.stack.callback(self._captured[name].judge.close)  # type: ignore[attr-defined]
        return self._captured[name]


def _serve(connection: Connection, options: LaneOptions, log: str) -> None:
    """A lane's process: jobs in, rows and ends out, until the pipe closes."""
    # Its own group: a Ctrl-C in the terminal reaches the parent only.
    os.setsid()
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    opener = Opener(options)
    lane = Lane(opener, connection.send, command=options.command)
    with contextlib.suppress(EOFError, BrokenPipeError), opener.stack:
        try:
            while True:
                connection.send(lane.do(connection.recv()))
        finally:
            lane.close()


class Processes:
    """Lanes as spawned processes; a context manager. A lane that dies ends its job and is started anew."""

    def __init__(self, options: LaneOptions, workers: int, log: Path) -> None:
        self.options, self.log = options, log
        self.lanes: Sequence[int] = range(workers)
        self._running = {lane: self._start() for lane in self.lanes}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        end = time.monotonic() + END_S
        for _process, connection in self._running.values():
            connection.close()
        for process, _connection in self._running.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.pid is not None and process.is_alive():
                kill_family(process.pid)

    def _start(self) -> tuple[Any, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self.options, str(self.log)))
        process.start()
        theirs.close()  # or the death of the lane would never close the pipe
        return process, ours

    def give(self, lane: int, job: Job) -> None:
        with contextlib.suppress(BrokenPipeError):  # wait() finds the dead
            self._running[lane][1].send(job)

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Row | Done]]:
        lanes: dict[Any, int] = {connection: lane for lane, (_, connection) in self._running.items()}
        for connection in wait(list(lanes), timeout=timeout_s):
            lane = lanes[connection]
            try:
                message = self._running[lane][1].recv()
            except (EOFError, OSError):
                process = self._running[lane][0]
                process.join(1)
                cause = _cause(process.exitcode)
                self._running[lane] = self._start()
                message = Done(message=f"The lane's process {cause}; see {self.log}.", died=True)
            yield lane, message


def _cause(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
