"""The rows of a run, and the file that keeps each of them before the next comes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mtmc.bench.row import BenchHeader
from mtmc.data.record import Record
from mtmc.errors import BenchError

SUITE = "economy"
EXHAUSTIVE = "exhaustive"
Index = tuple[int, ...]
"""Where a node stands: for each decision, the position of the action in ``shuffled`` order."""


class EconomyOptions(Record):
    """What changes a result. The number of lanes and the minutes do not."""

    programs: tuple[str, ...]
    depth: Literal[1, 2] = 2
    limit: int = 0
    """Children of one state that are judged at most; 0: all."""
    seeds: int = 3
    """Random episodes a program; 0 leaves out the heuristic's, too."""
    repeats: int = 5
    """How often a node of the noise sample is timed again."""
    repeat_nodes: int = 3
    """Nodes of that sample a program."""


class NodeRow(Record):
    """One judged node, or one way to a node that was judged before (``measured`` is false then)."""

    kind: Literal["node"] = "node"
    program: str
    part: str = EXHAUSTIVE
    """``exhaustive``, or the episode that came here, such as ``random 0``."""
    index: Index = ()
    """Empty for the root and in episodes."""
    depth: int
    """Actions from the captured program."""
    path: tuple[str, ...] = ()
    parent: str = ""
    """Structural hash; empty for the root."""
    state: str = ""
    """Structural hash; empty where the action could not be coded."""
    source: str = ""
    """Hash of the rendered file."""
    outcome: str
    message: str = ""
    ms: float | None = None
    """Of an accepted program: measured, or the roofline's estimate where the header has no hardware."""
    spread: float | None = None
    """Interquartile range over median, inside the one timing."""
    eager_ms: float | None = None
    """Interleaved with ``ms``."""
    kernel_ms: float | None = None
    """Sum over the kernels, each timed on its own."""
    kernels: int = 0
    measured: bool = True
    same: Literal["", "state", "source"] = ""
    """Why it was not measured: which hash was known."""
    code_s: float = 0.0
    build_s: float = 0.0
    judge_s: float = 0.0
    gpu_lock_s: float = 0.0
    at: float = 0.0
    """Seconds of the run when the row came in, over all sessions."""


class StateRow(Record):
    """The candidates of one state, all of them applied, none judged."""

    kind: Literal["state"] = "state"
    program: str
    index: Index
    state: str
    candidates: int
    """As offered, ``stop`` included."""
    cut: int
    """Further proposals that the quota left out."""
    children: tuple[str, ...]
    """Structural hashes in ``shuffled`` order, 16 digits; empty for an action that does not apply."""
    at: float = 0.0


class RepeatRow(Record):
    """A node timed again, ``round`` from 1."""

    kind: Literal["repeat"] = "repeat"
    program: str
    index: Index
    round: int
    outcome: str
    ms: float | None
    gpu_lock_s: float = 0.0
    at: float = 0.0


class EpisodeRow(Record):
    """A policy's search with a budget of ``steps`` judged steps, without the final check."""

    kind: Literal["episode"] = "episode"
    program: str
    policy: str
    seed: int
    steps: int
    judged: int
    """Steps that were used."""
    measured: int
    """Of them, not known before."""
    actions: int
    """Length of the path to the best program: a judged step may hold several actions."""
    best_ms: float | None
    cut: bool = False
    """The time ended first."""
    at: float = 0.0


class FailureRow(Record):
    """A job that gave no verdict: the lane died, or the problem is not usable."""

    kind: Literal["failure"] = "failure"
    program: str
    what: str
    message: str
    at: float = 0.0


class SessionRow(Record):
    """The end of one call of the command."""

    kind: Literal["session"] = "session"
    minutes: float
    workers: int
    reason: Literal["complete", "time", "interrupted"]
    at: float = 0.0


Row = NodeRow | StateRow | RepeatRow | EpisodeRow | FailureRow | SessionRow
_ROW: TypeAdapter[Row] = TypeAdapter(Annotated[Row, Field(discriminator="kind")])


def shuffled(count: int, *key: object) -> list[int]:
    """A permutation that depends on the key only: the fixed order in which children are taken."""
    order = list(range(count))
    random.Random(" ".join(map(str, key))).shuffle(order)
    return order


def read(path: str | Path) -> tuple[BenchHeader, list[Row]]:
    """Header and rows; a last line without its end was cut by a crash and is left out.

    Raises:
        BenchError: no such file, or not one of ``mtmc bench economy``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
        header = BenchHeader.model_validate_json(lines[0])
        if header.suite != SUITE:
            raise BenchError(f"{path} holds the suite {header.suite}; give a file of `mtmc bench economy`.")
        return header, [_ROW.validate_json(line) for line in lines[1:]]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"The file {path} can't be read ({error}).") from error
    except (IndexError, ValidationError) as error:
        raise BenchError(f"{path} is not a file of `mtmc bench economy` ({error}).") from error


class Book:
    """The rows of a run, each on the disk before the next comes."""

    def __init__(self, path: Path, header: BenchHeader) -> None:
        """Begins the file, or continues one of the same configuration.

        Raises:
            BenchError: another configuration's rows, or a file that can't be written.
        """
        self.path, self.rows = path, list[Row]()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            cut = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
            if cut:
                old, self.rows = read(path)
                if old.fingerprint != header.fingerprint:
                    raise BenchError(f"{path} holds rows of another configuration or version; give another --out.")
            self._file = open(path, "r+b" if cut else "wb", buffering=0)
            self._file.truncate(cut)
            self._file.seek(cut)
            if not cut:
                self._line(header)
        except OSError as error:
            raise BenchError(f"{path} can't be written ({error.strerror or error}); give another --out.") from error

    @property
    def spent_s(self) -> float:
        """Seconds of all sessions so far."""
        return max((row.at for row in self.rows), default=0.0)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        try:
            self._line(row)
        except OSError as error:
            raise BenchError(
                f"A row can't be added to {self.path} ({error.strerror or error}); the rows before it are safe."
            ) from error

    def _line(self, row: Record) -> None:
        rest = memoryview(row.model_dump_json().encode() + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
