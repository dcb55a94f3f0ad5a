"""The measurement economy with lanes in this process and a judge whose times are a function of the source."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtmc.bench.economy import figures
from mtmc.bench.economy.crew import LaneOptions, Processes
from mtmc.bench.economy.lane import Lane, Opened
from mtmc.bench.economy.page import page
from mtmc.bench.economy.plan import CHUNK, Job
from mtmc.bench.economy.rows import (
    SUITE,
    Book,
    EconomyOptions,
    EpisodeRow,
    FailureRow,
    NodeRow,
    RepeatRow,
    Row,
    SessionRow,
    StateRow,
    read,
)
from mtmc.bench.economy.run import Done, run
from mtmc.bench.row import BenchHeader
from mtmc.cli.app import app
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, KernelTime, Outcome, Timing
from mtmc.data.hardware import H200
from mtmc.errors import BenchError, ProblemError
from mtmc.ir.expr import Load, Op, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Program, Ref, Role, Stages
from mtmc.ir.types import DType
from mtmc.problem.problem import Problem
from mtmc.store.store import Store

TEXT = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(torch.tanh(x))


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
"""
NAMES = ("exp_tanh", "tanh_sigmoid")


def chain(ops: tuple[str, ...]) -> Program:
    shape = (Index.of(512), Index.of(1024))
    names = ["x", *(f"t{n}" for n in range(len(ops) - 1)), "out"]
    buffers = [Buffer.temp(name, DType.F32, shape) for name in names]
    buffers[0] = Buffer("x", DType.F32, shape, buffers[0].strides, Role.INPUT, "0")
    axes = (Axis("i0", shape[0]), Axis("i1", shape[1]))
    at = tuple(Index.of(axis) for axis in axes)
    kernels = [
        Kernel(
            id=f"k{n}",
            spec=Stages((Stage(axes, names[n + 1], at, Op(op, (Load(names[n], at),))),)),
            op=op,
            calls=(Call(f"aten.{op}.default", (Ref(names[n]),), results=(names[n + 1],)),),
            lines=(6,),
        )
        for n, op in enumerate(ops)
    ]
    return Program(tuple(buffers), tuple(kernels), ("out",))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeJudge:
    """A millisecond for each generated kernel, two for each of the library; a second of the clock a verdict."""

    clock: Clock
    seen: list[str] = field(default_factory=list)

    def baselines(self, *, compiled: bool = True, max_autotune: bool = False) -> Baselines:
        return Baselines(eager=Timing(samples_ms=(8.0,)))

    def evaluate(self, candidate: Candidate, **more: object) -> Evaluation:
        self.clock.now += 1.0
        self.seen.append(candidate.key)
        times = {s.kernel: 1.0 for s in candidate.signatures} | dict.fromkeys(candidate.library_kernels, 2.0)
        return Evaluation(
            outcome=Outcome.ACCEPTED,
            timing=Timing(samples_ms=(sum(times.values()),) * 5),
            reference_timing=Timing(samples_ms=(8.0,)),
            kernels=tuple(KernelTime(kernel=name, ms=ms) for name, ms in times.items()),
            gpu_lock_s=0.5,
        )

    def close(self) -> None: ...


class Inline:
    """Lanes that work in this process, one job after the other; what the first one found comes in last."""

    lanes = (0, 1, 2)

    def __init__(self, clock: Clock, store: Store, broken: tuple[str, ...] = ()) -> None:
        self.judges = {name: FakeJudge(clock) for name in NAMES}
        self.messages: list[tuple[int, Row | Done]] = []
        self.broken, self.store = broken, store
        self.at_work = 0
        opened = {name: self.start(name) for name in NAMES}
        self.crew = Lane(lambda name: self.open(opened, name), self.send, clock)

    def start(self, name: str) -> Opened:
        program = chain(tuple(name.split("_")))
        return Opened(Problem(name=name, text=TEXT), program, self.judges[name], H200, H200, {}, self.store)

    def open(self, opened: dict[str, Opened], name: str) -> Opened:
        if name in self.broken:
            raise ProblemError(f"{name} has no Model")
        return opened[name]

    def send(self, row: Row) -> None:
        self.messages.append((self.at_work, row))

    def give(self, lane: int, job: Job) -> None:
        self.at_work = lane
        self.messages.append((lane, self.crew.do(job)))

    def wait(self, timeout_s: float) -> Iterator[tuple[int, Row | Done]]:
        found, self.messages = sorted(self.messages, key=lambda message: -message[0]), []
        yield from found


def header(options: EconomyOptions) -> BenchHeader:
    flags = options.model_dump(mode="json")
    return BenchHeader(suite=SUITE, command="mtmc bench economy", started="now", hardware=H200, flags=flags)


def measure(
    path: Path, minutes: float = 1000.0, broken: tuple[str, ...] = (), on_row=lambda row: None, **more
) -> tuple[Inline, list[Row], SessionRow]:
    options = EconomyOptions(programs=NAMES, **{"seeds": 0, "repeats": 0, **more})
    clock = Clock()
    book = Book(path, header(options))
    with Store.open(path.with_suffix(".sqlite")) as store:
        crew = Inline(clock, store, broken)
        try:
            end = run(crew, options, book, minutes, clock, on_row)
        finally:
            book.close()
    return crew, read(path)[1], end


def tree(rows: list[Row]) -> list[NodeRow]:
    return [row for row in rows if isinstance(row, NodeRow) and row.part == "exhaustive"]


def places(rows: list[Row]) -> Counter[tuple[str, tuple[int, ...]]]:
    return Counter((row.program, row.index) for row in tree(rows))


def test_depth_1_is_whole_for_every_program_before_depth_2(tmp_path: Path) -> None:
    _, rows, end = measure(tmp_path / "a.jsonl")
    assert end.reason == "complete"
    depths = [row.depth for row in tree(rows)]
    assert depths == sorted(depths) and set(depths) == {0, 1, 2}
    widths = {row.program: len(row.children) for row in rows if isinstance(row, StateRow) and row.index == ()}
    assert set(widths) == set(NAMES) and min(widths.values()) > 3
    for name in NAMES:
        one = [row for row in tree(rows) if row.program == name and row.depth == 1]
        assert sorted(row.index for row in one) == [(n,) for n in range(widths[name])]
        deep = [row for row in rows if isinstance(row, StateRow) and row.program == name and len(row.index) == 1]
        two = sum(row.program == name and row.depth == 2 for row in tree(rows))
        assert two == sum(len(row.children) for row in deep)


def test_a_state_is_judged_once_and_its_other_ways_are_rows_too(tmp_path: Path) -> None:
    crew, rows, _ = measure(tmp_path / "a.jsonl", seeds=2, limit=5)
    for name in NAMES:
        seen = Counter(crew.judges[name].seen)
        judged = [row for row in rows if isinstance(row, NodeRow) and row.program == name and row.measured]
        # Equal states may be rendered under other names; an equal file is never judged again, not even by a policy.
        assert set(seen.values()) == {1} and len(judged) == len(seen)
        assert set(Counter(row.state for row in judged if row.part == "exhaustive").values()) == {1}
    again = [row for row in tree(rows) if row.same == "state"]
    assert again and all(not row.measured and row.ms is not None and not row.gpu_lock_s for row in again)


def test_the_time_ends_a_run_evenly_and_the_page_says_what_is_missing(tmp_path: Path) -> None:
    _, whole, _ = measure(tmp_path / "whole.jsonl")
    shallow = sum(row.measured and row.depth < 2 for row in tree(whole))
    crew, rows, end = measure(tmp_path / "cut.jsonl", minutes=(shallow + 40) / 60)
    deep = Counter(row.program for row in tree(rows) if row.depth == 2)
    assert end.reason == "time" and end.at <= shallow + 41
    assert sum(row.measured for row in tree(rows)) in (shallow + 40, shallow + 41)
    assert abs(deep[NAMES[0]] - deep[NAMES[1]]) <= 3 * CHUNK and min(deep.values()) > CHUNK
    assert places(rows) <= places(whole), "the sample is the beginning of the whole order"
    text = page(*read(tmp_path / "cut.jsonl"))
    full = page(*read(tmp_path / "whole.jsonl"))
    assert "(time)" in text and re.search(r"\d\*", text)
    cut_line, full_line = (next(x for x in t.splitlines()[::-1] if x.startswith(f"| {NAMES[0]}")) for t in (text, full))
    assert f"| {deep[NAMES[0]]}/" in cut_line
    done, of = full_line.split(" | ")[2].split("/")
    assert done == of and not re.search(r"\d\*", full)


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    _, whole, _ = measure(tmp_path / "whole.jsonl", limit=5)
    path = tmp_path / "a.jsonl"
    left = [12]

    def stop(row: Row) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    _, first, end = measure(path, limit=5, on_row=stop)
    assert end.reason == "interrupted" and len(first) == 13
    with open(path, "a") as file:
        file.write('{"kind":"node","prog')  # a crash in the middle of a line
    _, rows, end = measure(path, limit=5)
    assert end.reason == "complete"
    assert places(rows) == places(whole) and set(places(rows).values()) == {1}
    assert [row.at for row in rows] == sorted(row.at for row in rows), "time goes on where it was"
    with pytest.raises(BenchError, match="another configuration"):
        measure(path, limit=2)


def test_repeats_lie_between_the_other_work(tmp_path: Path) -> None:
    _, whole, _ = measure(tmp_path / "whole.jsonl", limit=5)
    _, rows, _ = measure(tmp_path / "a.jsonl", minutes=whole[-1].at / 60 + 0.5, repeats=5, limit=5)
    repeats = [row for row in rows if isinstance(row, RepeatRow)]
    assert Counter(row.round for row in repeats) == dict.fromkeys(range(1, 6), 2 * 3)
    assert {row.index for row in repeats if row.program == NAMES[0]} == {(), (0,), (1,)}
    deep = [n for n, row in enumerate(rows) if isinstance(row, NodeRow) and row.depth == 2]
    rounds = [next(n for n, row in enumerate(rows) if isinstance(row, RepeatRow) and row.round == r) for r in (1, 3, 5)]
    assert deep[0] < rounds[1] < deep[-1] and rounds == sorted(rounds)


def test_policies_run_with_each_budget_and_do_not_end_with_a_final_check(tmp_path: Path) -> None:
    _, rows, _ = measure(tmp_path / "a.jsonl", seeds=2, depth=1)
    episodes = [row for row in rows if isinstance(row, EpisodeRow)]
    assert Counter((e.policy, e.seed, e.steps) for e in episodes) == {
        (policy, seed, steps): 2
        for policy, seed in (("heuristic", 0), ("random", 0), ("random", 1))
        for steps in (1, 2, 4, 8)
    }
    best = {(e.steps, e.seed): e.best_ms for e in episodes if e.policy == "random" and e.program == NAMES[0]}
    assert all(best[8, seed] <= best[4, seed] <= best[2, seed] <= best[1, seed] <= 4.0 for seed in (0, 1))
    heuristic = [e for e in episodes if e.policy == "heuristic" and e.steps == 8]
    assert [e.best_ms for e in heuristic] == [1.0, 1.0] and heuristic[0].actions > 1
    assert all(e.measured == 0 for e in episodes if e.steps < 8), "the longest found their nodes"


def test_a_program_that_is_not_usable_costs_only_itself(tmp_path: Path) -> None:
    _, rows, end = measure(tmp_path / "a.jsonl", broken=NAMES[:1])
    failed = [row for row in rows if isinstance(row, FailureRow)]
    assert [row.program for row in failed] == [NAMES[0]] and end.reason == "complete"
    assert {row.program for row in tree(rows)} == {NAMES[1]}
    assert f"{NAMES[0]}, root: ProblemError: {NAMES[0]} has no Model" in page(*read(tmp_path / "a.jsonl"))


# ---- figures and decisions, on rows with known numbers ------------------------------------------------------------


def node(index: tuple[int, ...], ms: float | None, kernel_ms: float | None = None, **more) -> NodeRow:
    row = {
        "program": "p", "index": index, "depth": len(index), "path": tuple(["stop"] * len(index)), "state": str(index),
        "outcome": "accepted" if ms else "wrong_result", "ms": ms, "kernel_ms": kernel_ms, "kernels": 1,
        "eager_ms": 20.0, "gpu_lock_s": 0.5, "at": 10.0,
    }  # fmt: skip
    return NodeRow(**{**row, **more})


ROWS: list[Row] = [
    StateRow(program="p", index=(), state="r" * 32, candidates=5, cut=0, children=("a" * 16, "b" * 16, "c" * 16, "")),
    node((), 10.0, 9.0),
    node((0,), 5.0, 4.0),
    node((1,), 10.1, 8.0),
    node((2,), None),
    StateRow(program="p", index=(0,), state="a" * 32, candidates=4, cut=0, children=("d" * 16, "b" * 16, "r" * 16)),
    node((0, 0), 4.0, 4.4),
    node((0, 1), 10.1, 8.0, measured=False, same="state"),
    RepeatRow(program="p", index=(), round=1, outcome="accepted", ms=10.2, gpu_lock_s=0.5, at=20.0),
    RepeatRow(program="p", index=(), round=2, outcome="accepted", ms=9.8, gpu_lock_s=0.5, at=30.0),
    EpisodeRow(program="p", policy="heuristic", seed=0, steps=2, judged=2, measured=0, actions=3, best_ms=5.0),
    EpisodeRow(program="p", policy="random", seed=0, steps=2, judged=2, measured=0, actions=1, best_ms=10.0),
    EpisodeRow(program="p", policy="random", seed=1, steps=2, judged=2, measured=0, actions=1, best_ms=2.5),
    EpisodeRow(program="p", policy="random", seed=2, steps=2, judged=0, measured=0, actions=0, best_ms=9.0, cut=True),
]


def test_figures() -> None:
    one = figures.trees(["p"], ROWS)["p"]
    found = figures.moves(one.changes)
    # 10 -> 5 and 5 -> 4 faster, 10 -> 10.1 still, 5 -> 10.1 slower, one rejected.
    assert found == figures.Moves(5, rejected=0.2, faster=0.4, slower=0.2, still=0.2)
    assert figures.noise(one) == [pytest.approx(0.04)]
    assert sorted(figures.pair_noise(one))[-1] == pytest.approx(1 - 9.8 / 10.2)
    assert sorted(figures.sum_errors(one.nodes.values()))[0] == pytest.approx(-2.1 / 10.1)
    # The sums say 4 -> 4.4 where the whole went from 5 to 4: two of three moves agree.
    assert figures.sum_agreement(one.changes) == (3, pytest.approx(2 / 3))
    # r, a, b, c, d: the captured program and b are reached twice.
    assert figures.reached_twice([one]) == (5, pytest.approx(2 / 5))
    assert (one.exhaustive(0), one.exhaustive(1), one.exhaustive(2)) == (10.0, 5.0, 4.0)
    assert one.policy_speed("random", 2) == pytest.approx(4.0), "a geometric mean, without the one that was cut"
    assert (one.ways, len(one.parents), one.ways_expected) == (3, 2, 6.0)
    rate = figures.rate(ROWS)
    assert (rate.judged, rate.retimed, rate.looked_up) == (5, 2, 1)
    assert rate.per_second == pytest.approx(7 / 20) and rate.per_lock_second == pytest.approx(2.0)


def report(*rows: Row) -> str:
    return page(header(EconomyOptions(programs=("p",))), [*ROWS, *rows])


def test_the_decisions_follow_from_the_numbers() -> None:
    text = report()
    assert "above the 3%" in text and "so the reward stays the whole program's time" in text
    assert "values are kept by state" in text and "worth imitating" in text and "(offline)" in text
    assert "frequent enough" in text and "Length of an episode: open" in text
    quiet = [row for row in ROWS if not isinstance(row, RepeatRow)]
    quiet.append(RepeatRow(program="p", index=(), round=1, outcome="accepted", ms=10.05, at=20.0))
    # Many still actions, sums that agree, distinct states, a fast judge, a heuristic as good as the tree.
    still = [node((n,), 10.0, 9.0, at=10.0) for n in range(3, 40)]
    more = [EpisodeRow(program="p", policy="heuristic", seed=0, steps=s, judged=s, measured=0, actions=3, best_ms=ms)
            for s, ms in ((1, 4.0), (2, 3.0), (4, 2.0), (8, 1.99))]  # fmt: skip
    kept = [row for row in quiet if not isinstance(row, EpisodeRow | StateRow) and getattr(row, "index", ()) != (0, 0)]
    states = [
        StateRow(program="p", index=(), state="r" * 32, candidates=9, cut=0, children=tuple("abcdefgh")),
        StateRow(program="p", index=(0,), state="a" * 32, candidates=4, cut=0, children=("i", "a")),
    ]
    other = page(header(EconomyOptions(programs=("p",))), [*kept, *still, *more, *states])
    assert "below the 3%" in other and "Moves are rare" in other and "may be judged alone in training" in other
    assert "a tree of paths loses little" in other and "its episodes are the supervised start" in other
    assert "(on-policy)" in other and "ends at 4 steps" in other
    estimates = page(header(EconomyOptions(programs=("p",))).model_copy(update={"hardware": None}), ROWS)
    assert "Nothing here was measured" in estimates and "estimates decide nothing" in estimates


def test_a_page_can_be_made_before_anything_was_judged() -> None:
    text = page(header(EconomyOptions(programs=("p",))), [])
    assert text.count(": open.**") == 7 and "| p | 0/? | 0/? | 0/16 | 0/5 |" in text


# ---- processes ------------------------------------------------------------------------------------------------------


def test_a_lane_that_dies_ends_its_job_and_starts_anew(tmp_path: Path) -> None:
    with Processes(LaneOptions(examples=str(tmp_path)), 1, tmp_path / "log") as crew:
        before = crew._running[0][0].pid
        os.kill(before, signal.SIGKILL)
        (lane, message), *_ = crew.wait(30)
        assert lane == 0 and isinstance(message, Done) and message.died and "SIGKILL" in message.message
        assert crew._running[0][0].pid != before
        crew.give(0, Job("root", "nothing", deadline=time.monotonic() + 60))
        (_, message), *_ = crew.wait(60)
        assert isinstance(message, Done) and message.message.startswith("ProblemError")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_command_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TEXT)
    out, text = tmp_path / "economy.jsonl", tmp_path / "page.md"
    call = ["bench", "economy", "--examples", str(tmp_path), "--programs", "small", "--out", str(out)]
    call += ["--depth", "1", "--limit", "3", "--seeds", "0", "--repeats", "1", "--minutes", "6"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    rows = read(out)[1]
    assert sorted(row.index for row in tree(rows)) == [(), (0,), (1,), (2,)]
    assert all(row.outcome == "accepted" and row.ms for row in tree(rows))
    assert sum(isinstance(row, RepeatRow) for row in rows) == 3
    assert CliRunner().invoke(app, ["bench", "economy-report", str(out), "-o", str(text)]).exit_code == 0
    assert "3/" in text.read_text() and "At most 3 children" in text.read_text()
    missing = CliRunner().invoke(app, [*call[:5], "nothing", *call[6:]])
    assert isinstance(missing.exception, BenchError) and "nothing.py" in str(missing.exception)
