"""The order of the work: a function of the rows so far and of what is in flight.

The tree is measured breadth first. Depth 1 is complete for every program before depth 2; lanes that have to wait for it
run the policies' episodes. The rest of the time goes to a pseudo-random sample of depth 2, evenly over the programs,
between which a few nodes are timed again and again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from mtmc.bench.economy.rows import (
    EconomyOptions,
    EpisodeRow,
    FailureRow,
    Index,
    NodeRow,
    RepeatRow,
    Row,
    StateRow,
)

PROGRAMS = (
    "softmax_rows", "layer_norm_residual", "rms_norm", "mlp_gelu",
    "matmul_square", "masked_cumsum", "charbonnier_loss", "transformer_block",
)  # fmt: skip
BUDGETS = (8, 4, 2, 1)
"""Judged steps of an episode; the longest first, so that the others find its nodes in the store."""
CHUNK = 8
"""Nodes of one job: a lane that changes the program opens its reference again."""
VISIT = 2
"""Children of one depth-1 state that are sampled in a row: proposing them costs CPU."""


@dataclass(frozen=True)
class Visit:
    """Children ``start`` to ``stop`` (in shuffled order) of the state at ``path``; without children, itself."""

    path: tuple[str, ...] = ()
    index: Index = ()
    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class Job:
    """What one lane does next, all on one program."""

    kind: Literal["root", "children", "episode", "repeat"]
    program: str
    visits: tuple[Visit, ...] = (Visit(),)
    policy: str = ""
    seed: int = 0
    budgets: tuple[int, ...] = ()
    round: int = 0
    known: dict[str, NodeRow] = field(default_factory=dict)
    """Structural hash to its verdict: not measured again."""
    expanded: frozenset[Index] = frozenset()
    """States whose candidates are in the file."""
    deadline: float = 0.0
    """``time.monotonic`` seconds, the same clock in every process."""

    @property
    def shallow(self) -> bool:
        """Part of depth 0 or 1."""
        return self.kind == "root" or (self.kind == "children" and not self.visits[0].index)


class Plan:
    """What is still to be done: a function of the rows so far and of what is in flight."""

    def __init__(self, options: EconomyOptions, rows: Iterable[Row], total_s: float) -> None:
        self.options, self.total_s = options, total_s
        self.nodes: dict[str, dict[Index, NodeRow]] = defaultdict(dict)
        self.known: dict[str, dict[str, NodeRow]] = defaultdict(dict)
        self.states: dict[str, dict[Index, StateRow]] = defaultdict(dict)
        self.given: set[tuple[object, ...]] = set()
        """Work that is done or was given out in this session."""
        self.dead: set[str] = set()
        """Programs whose root gave no verdict."""
        self.sampled: Counter[str] = Counter()
        self.flying: Counter[str] = Counter()
        """Jobs of depth 0 and 1 that lanes work on, by program."""
        self.shallow_at: float | None = None
        for row in rows:
            if not isinstance(row, FailureRow):
                self.learn(row)
        for name, nodes in self.nodes.items():
            self.sampled[name] = sum(len(index) == 2 for index in nodes)

    def learn(self, row: Row) -> None:
        match row:
            case NodeRow(part="exhaustive"):
                self.nodes[row.program][row.index] = row
                self.given.add((row.program, row.index))
                if row.depth < 2:
                    self.shallow_at = row.at
                if row.state and row.same != "state":
                    self.known[row.program].setdefault(row.state, row)
            case StateRow():
                self.states[row.program][row.index] = row
            case RepeatRow():
                self.given.add((row.program, row.index, "repeat", row.round))
            case EpisodeRow(cut=False) if row.steps == min(BUDGETS):
                self.given.add((row.program, row.policy, row.seed))
            case FailureRow() if row.what == "root":
                self.dead.add(row.program)

    def next(self, spent_s: float, last: str, deadline: float) -> Job | None:
        """A job for a lane that had ``last`` open, or None where there is none for now."""
        job = self._root() or self._shallow(last)
        if job is None and self.flying.total():
            job = self._episode(last)  # depth 2 has to wait for the others, a policy need not
        elif job is None:
            job = self._repeat(spent_s) or self._episode(last) or self._deep(last) or self._repeat(self.total_s)
        if job is None:
            return None
        self.flying[job.program] += job.shallow
        known = dict(self.known[job.program]) if job.kind == "children" else {}
        return replace(job, known=known, expanded=frozenset(self.states[job.program]), deadline=deadline)

    def landed(self, job: Job) -> None:
        self.flying[job.program] -= job.shallow

    def _claim(self, *key: object) -> bool:
        new = key not in self.given
        self.given.add(key)
        return new

    def _root(self) -> Job | None:
        for name in self.options.programs:
            if self._claim(name, ()):
                return Job("root", name)
        return None

    def _width(self, program: str, index: Index) -> int:
        """How many children of a state there are to take; of one that is not expanded yet, some."""
        state = self.states[program].get(index)
        count = len(state.children) if state else VISIT
        return min(count, self.options.limit) if self.options.limit else count

    def _shallow(self, last: str) -> Job | None:
        names = [name for name in self.options.programs if () in self.states[name]]
        for name in sorted(names, key=lambda name: (name != last, -self._width(name, ()))):
            missing = [n for n in range(self._width(name, ())) if (name, (n,)) not in self.given][:CHUNK]
            if missing:
                self.given |= {(name, (n,)) for n in missing}
                return Job("children", name, tuple(Visit((), (), n, n + 1) for n in missing))
        return None

    def _episode(self, last: str) -> Job | None:
        runs = [("heuristic", 0), *(("random", seed) for seed in range(self.options.seeds))]
        for policy, seed in runs if self.options.seeds else []:
            for name in sorted(self._live(), key=lambda name: name != last):
                if self._claim(name, policy, seed):
                    return Job("episode", name, policy=policy, seed=seed, budgets=BUDGETS)
        return None

    def _repeat(self, spent_s: float) -> Job | None:
        """The rounds are spread over the time that is left after depth 1."""
        begin = min(self.shallow_at or 0.0, self.total_s)
        for number in range(1, self.options.repeats + 1):
            if spent_s < begin + (self.total_s - begin) * number / (self.options.repeats + 1):
                return None
            for name in self._live():
                visits = [
                    Visit(row.path, row.index)
                    for row in self._noise_sample(name)
                    if self._claim(name, row.index, "repeat", number)
                ]
                if visits:
                    return Job("repeat", name, tuple(visits), round=number)
        return None

    def _noise_sample(self, name: str) -> list[NodeRow]:
        """The root and the first accepted ones of depth 1, whose order is random already."""
        rows = [row for _, row in sorted(self.nodes[name].items()) if row.depth < 2 and row.same != "state"]
        return [row for row in rows if row.outcome == "accepted"][: self.options.repeat_nodes]

    def _deep(self, last: str) -> Job | None:
        """The program that is furthest behind; one that a lane has open already may be a little ahead."""
        if self.options.depth < 2:
            return None
        slack = {name: self.sampled[name] - (CHUNK if name == last else 0) for name in self._live()}
        for name in sorted(slack, key=lambda name: slack[name]):
            visits = self._visits(name)
            if visits:
                self.sampled[name] += sum(v.stop - v.start for v in visits)
                return Job("children", name, visits)
        return None

    def _visits(self, name: str) -> tuple[Visit, ...]:
        """A few children of each of a few parents, in turns, so that every parent is reached early."""
        parents = self.parents(name)
        widest = max((self._width(name, parent.index) for parent in parents), default=0)
        found: list[Visit] = []
        for start in range(0, widest, VISIT):
            for parent in parents:
                stop = min(start + VISIT, self._width(name, parent.index))
                for slot in range(start, stop):
                    if self._claim(name, (*parent.index, slot)):
                        found.append(Visit(parent.path, parent.index, slot, slot + 1))
                if len(found) >= CHUNK:
                    return tuple(found)
        return tuple(found)

    def parents(self, name: str) -> list[NodeRow]:
        """Depth-1 states that a search could go on from."""
        rows = [row for index, row in sorted(self.nodes[name].items()) if len(index) == 1]
        return [row for row in rows if row.outcome == "accepted" and row.same != "state"]

    def _live(self) -> list[str]:
        return [n for n in self.options.programs if n not in self.dead and () in self.nodes[n]]
