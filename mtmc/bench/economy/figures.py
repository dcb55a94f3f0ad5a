"""Numbers from the rows: pure functions, so that a page can be made again from the file."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mtmc.actions import catalog
from mtmc.bench.economy.rows import EXHAUSTIVE, EpisodeRow, FailureRow, Index, NodeRow, RepeatRow, Row, StateRow
from mtmc.bench.metrics import geometric_mean
from mtmc.errors import IllegalAction

MOVE = 0.03
"""Relative change of a time that counts as a move."""
STEPS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Spread:
    """A sample in four numbers."""

    count: int
    low: float
    """10th percentile."""
    median: float
    high: float
    """90th percentile."""


def spread(values: Iterable[float]) -> Spread | None:
    """None for no values; with fewer than three the percentiles are the extremes."""
    ordered = sorted(values)
    if not ordered:
        return None
    count = len(ordered)
    low, high = (ordered[round(share * (count - 1))] for share in (0.1, 0.9))
    return Spread(count, low, statistics.median(ordered), high)


@dataclass(frozen=True)
class Change:
    """One action: a node and the state that it came from."""

    kind: str
    """Of the action, such as ``tile``."""
    before: NodeRow
    after: NodeRow

    @property
    def timed(self) -> bool:
        return self.before.ms is not None and self.after.ms is not None

    @property
    def relative(self) -> float:
        """Time after over time before, minus one; negative where it got faster."""
        return (self.after.ms or math.nan) / (self.before.ms or math.nan) - 1.0

    @property
    def summed(self) -> float | None:
        """The same from the kernels' own times."""
        if self.before.kernel_ms is None or self.after.kernel_ms is None:
            return None
        return self.after.kernel_ms / self.before.kernel_ms - 1.0


@dataclass
class Tree:
    """What was measured of one program."""

    name: str
    nodes: dict[Index, NodeRow] = field(default_factory=dict)
    states: dict[Index, StateRow] = field(default_factory=dict)
    episodes: list[EpisodeRow] = field(default_factory=list)
    repeats: dict[Index, list[RepeatRow]] = field(default_factory=lambda: defaultdict(list))

    @property
    def root(self) -> NodeRow | None:
        return self.nodes.get(())

    def at_depth(self, depth: int) -> list[NodeRow]:
        return [row for index, row in self.nodes.items() if len(index) == depth]

    @property
    def width(self) -> int:
        """Children of the root that there are, ``stop`` left out."""
        return len(self.states[()].children) if () in self.states else 0

    @property
    def parents(self) -> list[NodeRow]:
        """Depth-1 states that a search can go on from."""
        return [row for row in self.at_depth(1) if row.outcome == "accepted" and row.same != "state"]

    @property
    def expanded(self) -> list[StateRow]:
        return [row for index, row in self.states.items() if len(index) == 1]

    @property
    def ways(self) -> int:
        """Ways to depth 2 that are known: through the states whose candidates were listed."""
        return sum(len(row.children) for row in self.expanded)

    @property
    def ways_expected(self) -> float:
        """All ways to depth 2, the states that were not listed taken as the average of those that were."""
        return self.ways / len(self.expanded) * len(self.parents) if self.expanded else 0.0

    @property
    def reached(self) -> Counter[str]:
        """How often each state is reached, over all listed candidates; the captured program starts at one."""
        ways = [child for row in self.states.values() for child in row.children if child]
        start = [row.state[: len(ways[0])] for row in self.states.values() if row.index == () and ways]
        return Counter([*start, *ways])

    @property
    def changes(self) -> list[Change]:
        found = []
        for index, row in self.nodes.items():
            before = self.nodes.get(index[:-1])
            if index and before is not None and row.path:
                found.append(Change(_kind(row.path[-1]), before, row))
        return found

    @property
    def base_ms(self) -> float | None:
        """Eager; where it was not timed, the program as captured."""
        return (self.root.eager_ms or self.root.ms) if self.root else None

    def exhaustive(self, steps: int) -> float | None:
        """Fastest measured time within so many actions."""
        return min((r.ms for r in self.nodes.values() if r.ms is not None and r.depth <= steps), default=None)

    def policy(self, name: str, steps: int) -> list[EpisodeRow]:
        return [e for e in self.episodes if e.policy == name and e.steps == steps and e.best_ms and not e.cut]

    def speed(self, ms: float | None) -> float | None:
        return self.base_ms / ms if self.base_ms and ms else None

    def policy_speed(self, name: str, steps: int) -> float | None:
        """Geometric mean over the seeds."""
        speeds = [s for e in self.policy(name, steps) if (s := self.speed(e.best_ms)) is not None]
        return geometric_mean(speeds)


def _kind(line: str) -> str:
    try:
        return catalog.parse(line).kind
    except IllegalAction:
        return line.split(" ", 1)[0]


def trees(programs: Sequence[str], rows: Sequence[Row]) -> dict[str, Tree]:
    """The rows by program, in the given order. Of two rows for one node the first counts: it was not known yet."""
    found = {name: Tree(name) for name in programs}
    for row in rows:
        match row:
            case NodeRow(part="exhaustive") if row.program in found:
                found[row.program].nodes.setdefault(row.index, row)
            case StateRow() if row.program in found:
                found[row.program].states.setdefault(row.index, row)
            case EpisodeRow() if row.program in found:
                found[row.program].episodes.append(row)
            case RepeatRow() if row.program in found:
                found[row.program].repeats[row.index].append(row)
    return found


@dataclass(frozen=True)
class Rate:
    """What judging costs."""

    judged: int
    """Nodes that were measured, of the tree and of episodes."""
    of_tree: int
    retimed: int
    looked_up: int
    """Ways to a node whose verdict was known."""
    wall_s: float
    """From the start of the command to the last row, over all sessions."""
    start_s: float
    """Until the first verdict: processes, imports, captures."""
    lock_s: float
    """Seconds that verdicts and repeats held the card."""

    @property
    def per_second(self) -> float:
        """Verdicts, repeats included, over the wall seconds after the start."""
        busy = self.wall_s - self.start_s
        return (self.judged + self.retimed) / busy if busy > 0 else math.nan

    @property
    def per_lock_second(self) -> float:
        return (self.judged + self.retimed) / self.lock_s if self.lock_s else math.nan

    @property
    def lock_share(self) -> float:
        """Share of the wall time after the start in which the card was held."""
        busy = self.wall_s - self.start_s
        return self.lock_s / busy if busy > 0 else math.nan


def rate(rows: Sequence[Row]) -> Rate:
    nodes = [row for row in rows if isinstance(row, NodeRow)]
    judged = [row for row in nodes if row.measured]
    repeats = [row for row in rows if isinstance(row, RepeatRow)]
    return Rate(
        judged=len(judged),
        of_tree=sum(row.part == EXHAUSTIVE for row in judged),
        retimed=len(repeats),
        looked_up=sum(bool(row.same) for row in nodes),
        wall_s=max((row.at for row in rows), default=0.0),
        start_s=min((row.at for row in judged), default=0.0),
        lock_s=sum(row.gpu_lock_s for row in judged) + sum(row.gpu_lock_s for row in repeats),
    )


def noise(tree: Tree) -> list[float]:
    """For each node that was timed again: the range of its medians over their median, the first timing included."""
    found = []
    for index, rows in tree.repeats.items():
        node = tree.nodes.get(index)
        times = [ms for ms in (node.ms if node else None, *(row.ms for row in rows)) if ms is not None]
        if len(times) > 1:
            found.append((max(times) - min(times)) / statistics.median(times))
    return found


def pair_noise(tree: Tree) -> list[float]:
    """Relative difference of two timings of one node, over all pairs: what a change has to exceed."""
    found = []
    for index, rows in tree.repeats.items():
        node = tree.nodes.get(index)
        times = [ms for ms in (node.ms if node else None, *(row.ms for row in rows)) if ms is not None]
        found += [abs(a / b - 1.0) for n, a in enumerate(times) for b in times[:n]]
    return found


@dataclass(frozen=True)
class Moves:
    """What actions do to the time."""

    count: int
    """Actions with a verdict."""
    rejected: float
    """Shares of ``count``; with the next three they add up to one."""
    faster: float
    slower: float
    still: float

    @property
    def moved(self) -> float:
        return self.faster + self.slower


def moves(changes: Sequence[Change]) -> Moves | None:
    """None for no change. An action from a state without a time says nothing and is left out."""
    given = [change for change in changes if change.before.ms is not None]
    if not given:
        return None
    timed = [change.relative for change in given if change.timed]
    count = len(given)
    return Moves(
        count,
        rejected=(count - len(timed)) / count,
        faster=sum(value < -MOVE for value in timed) / count,
        slower=sum(value > MOVE for value in timed) / count,
        still=sum(abs(value) <= MOVE for value in timed) / count,
    )


def sum_errors(rows: Iterable[NodeRow]) -> list[float]:
    """(summed kernel times - whole time) / whole time, for distinct states that have both."""
    return [
        (row.kernel_ms - row.ms) / row.ms
        for row in rows
        if row.same != "state" and row.ms and row.kernel_ms is not None
    ]


def sum_agreement(changes: Sequence[Change]) -> tuple[int, float] | None:
    """Moved changes that have both times, and the share of them where the summed times move the same way."""
    both = [
        (change.relative, change.summed)
        for change in changes
        if change.timed and abs(change.relative) > MOVE and change.summed is not None
    ]
    return (len(both), sum(a * b > 0 for a, b in both) / len(both)) if both else None


def reached_twice(found: Iterable[Tree]) -> tuple[int, float]:
    """Distinct states, and the share of them that is reached at least twice. Only programs with a listed depth-1 state
    count: candidates of one state differ by construction."""
    counts = [n for tree in found if tree.expanded for n in tree.reached.values()]
    return len(counts), sum(n > 1 for n in counts) / len(counts) if counts else math.nan


def mean_speed(found: Iterable[Tree], policy: str, steps: int) -> tuple[int, float] | None:
    """Programs, and their geometric mean speed; ``policy`` may be ``exhaustive``."""
    speeds = [
        speed
        for tree in found
        if (speed := tree.speed(tree.exhaustive(steps)) if policy == EXHAUSTIVE else tree.policy_speed(policy, steps))
    ]
    mean = geometric_mean(speeds)
    return (len(speeds), mean) if mean is not None else None


def failures(rows: Iterable[Row]) -> list[FailureRow]:
    return [row for row in rows if isinstance(row, FailureRow)]
