"""A lane of the measurement economy: one process with one judge, which does the jobs of a ``Plan``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mtmc.actions import catalog
from mtmc.actions.action import Action
from mtmc.bench.economy.plan import Job
from mtmc.bench.economy.rows import EXHAUSTIVE, EpisodeRow, Index, NodeRow, RepeatRow, Row, StateRow, shuffled
from mtmc.bench.economy.run import Done
from mtmc.codegen import module as codegen
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, Outcome
from mtmc.data.hardware import Hardware
from mtmc.env.policy import Policy
from mtmc.env.profile import measured_times
from mtmc.errors import CodegenError, CoderError, IRError, MtmcError
from mtmc.ir.codec import structural_hash
from mtmc.ir.cost import floor_bytes, program_ms
from mtmc.ir.program import Program
from mtmc.log import get_logger
from mtmc.problem.problem import Problem

if TYPE_CHECKING:
    from mtmc.search.draft import Draft
    from mtmc.search.options import Judge
    from mtmc.search.recorder import Recorder
    from mtmc.search.rehearsal import Rehearsal
    from mtmc.store.store import Store

log = get_logger(__name__)

STOP = "stop"
SHORT = 16
"""Digits of a child's hash in a StateRow: enough to tell the states of one program apart."""
MESSAGE = 300


@dataclass
class Opened:
    """A program on a lane: captured once, its judge open while the lane works on it."""

    problem: Problem
    program: Program
    judge: Judge
    hardware: Hardware
    card: Hardware | None
    """None where nothing is measured."""
    protocol: dict[str, Any]
    store: Store | None = None
    rehearsal: Rehearsal | None = None
    baselines: Baselines | None = None
    drafts: dict[tuple[str, ...], Draft] = field(default_factory=dict)
    actions: dict[tuple[str, ...], list[Action]] = field(default_factory=dict)

    @property
    def judged_problem(self) -> Problem:
        return self.rehearsal.problem if self.rehearsal else self.problem


@dataclass
class Lane:
    """``open`` gives the program of a name, its judge started. ``send`` takes every row as it is found."""

    open: Callable[[str], Opened]
    send: Callable[[Row], None]
    clock: Callable[[], float] = time.monotonic
    command: str = ""
    _opened: tuple[str, Opened] | None = None
    _recorders: dict[str, Recorder] = field(default_factory=dict)

    def do(self, job: Job) -> Done:
        """One job. What is left of it at its deadline is left out; an error becomes a message."""
        try:
            opened = self._open(job.program)
            if job.kind == "episode":
                self._episodes(job, opened)
            for visit in job.visits if job.kind != "episode" else ():
                if self.clock() >= job.deadline:
                    break
                if job.kind == "root":
                    self._expand(job, opened, (), ())
                    self._judge(job, opened, opened_draft(opened, ()), None, (), (), time.monotonic())
                elif job.kind == "repeat":
                    self._repeat(job, opened, visit.path, visit.index)
                else:
                    self._child(job, opened, visit.path, visit.index, visit.start)
        except Exception as error:  # a bug costs its job, and the log says where it is
            if not isinstance(error, MtmcError):
                log.exception("job %s of %s", job.kind, job.program)
            return Done(message=f"{type(error).__name__}: {error}")
        return Done()

    def close(self) -> None:
        """End the store's episodes of the tree."""
        for recorder in self._recorders.values():
            recorder.end(state="finished")

    def _open(self, name: str) -> Opened:
        if self._opened is None or self._opened[0] != name:
            self._opened = None  # the judge of the program before is closed, even if this one does not open
            self._opened = (name, self.open(name))
        return self._opened[1]

    # ---- the tree

    def _expand(self, job: Job, opened: Opened, path: tuple[str, ...], index: Index) -> list[Action]:
        """The candidates of a state in their shuffled order, without ``stop``; a row for them where there is none.

        Shares are the roofline's, so that the same tree is measured again after a resume.
        """
        from mtmc.search.loop import CANDIDATES

        if path not in opened.actions:
            program = opened_draft(opened, path).program
            found = catalog.propose(program, opened.hardware, None, CANDIDATES)
            actions = [action for action in found.actions if action.kind != STOP]
            state = structural_hash(program)
            actions = [actions[n] for n in shuffled(len(actions), job.program, state)]
            opened.actions[path] = actions
            if index not in job.expanded:
                children = tuple(_child_hash(program, action, opened.hardware) for action in actions)
                self.send(
                    StateRow(
                        program=job.program, index=index, state=state, candidates=len(found.actions),
                        cut=found.cut, children=children,
                    )
                )  # fmt: skip
        return opened.actions[path]

    def _child(self, job: Job, opened: Opened, path: tuple[str, ...], index: Index, slot: int) -> None:
        actions = self._expand(job, opened, path, index)
        if slot >= len(actions):
            return
        began = time.monotonic()
        parent = opened_draft(opened, path)
        line = actions[slot].describe(parent.program)
        place = (*index, slot)
        try:
            draft = step(opened, parent, actions[slot], line)
        except (IRError, CoderError) as error:
            self.send(self._uncoded(job, parent, place, line, error, began))
            return
        known = job.known.get(structural_hash(draft.program))
        if known is not None:
            self.send(_again(known, place, draft.path, structural_hash(parent.program)))
            return
        row = self._judge(job, opened, draft, parent, place, actions, began)
        if row is not None and row.state:
            job.known.setdefault(row.state, row)

    def _judge(
        self,
        job: Job,
        opened: Opened,
        draft: Draft,
        parent: Draft | None,
        index: Index,
        actions: Sequence[Action],
        began: float,
    ) -> NodeRow | None:
        try:
            judged = render(opened, draft)
        except (CodegenError, IRError) as error:
            self.send(self._uncoded(job, parent or draft, index, draft.path[-1] if draft.path else "", error, began))
            return None
        recorder = self._recorder(job.program, opened)
        code_s = time.monotonic() - began
        evaluation = recorder.lookup(judged.source)
        measured = evaluation is None
        if evaluation is None:
            evaluation = evaluate(opened, draft.program, judged)
            recorder.remember(judged.source, evaluation)
        wall_s = time.monotonic() - began
        before = parent or draft
        recorder.step(
            index=len(draft.path), parent=before.program, path=before.path, child=draft.program, source=judged.source,
            evaluation=evaluation, measured=measured, action=draft.path[-1] if draft.path else "",
            actions=[action.describe(before.program) for action in actions], times_s=(0.0, code_s, wall_s),
        )  # fmt: skip
        row = node_row(
            job.program, EXHAUSTIVE, draft.path, parent.program if parent else None, draft.program, judged.source,
            evaluation, measured, (code_s, wall_s),
        ).model_copy(update={"index": index})  # fmt: skip
        self.send(row)
        return row

    def _repeat(self, job: Job, opened: Opened, path: tuple[str, ...], index: Index) -> None:
        draft = opened_draft(opened, path)
        found = evaluate(opened, draft.program, render(opened, draft))
        ms = found.ms if found.ms is not None else found.estimate_ms
        self.send(
            RepeatRow(
                program=job.program, index=index, round=job.round, outcome=found.outcome,
                ms=ms if found.outcome is Outcome.ACCEPTED else None, gpu_lock_s=found.gpu_lock_s,
            )
        )  # fmt: skip

    def _uncoded(self, job: Job, parent: Draft, index: Index, line: str, error: MtmcError, began: float) -> NodeRow:
        return NodeRow(
            program=job.program, index=index, depth=len(index), path=(*parent.path, line),
            parent=structural_hash(parent.program), outcome=Outcome.BUILD_ERROR, message=error.message[:MESSAGE],
            measured=False, code_s=round(time.monotonic() - began, 4),
        )  # fmt: skip

    def _recorder(self, name: str, opened: Opened) -> Recorder:
        if name not in self._recorders:
            self._recorders[name] = _recorder(opened, EXHAUSTIVE, 0, self.command)
        return self._recorders[name]

    # ---- episodes

    def _episodes(self, job: Job, opened: Opened) -> None:
        from mtmc.micro.compiler import CompilerCoder
        from mtmc.search.budget import Budget
        from mtmc.search.driver import make_policy
        from mtmc.search.loop import search
        from mtmc.search.options import SearchOptions

        for steps in job.budgets:
            left = job.deadline - self.clock()
            if left <= 0:
                return
            policy: Policy = make_policy(job.policy, job.seed)
            part = f"{job.policy} {job.seed}"
            watched = _watching(_recorder(opened, policy.name, job.seed, self.command), job.program, part, self.send)
            result = search(
                opened.problem,
                policy=policy,
                coder=CompilerCoder(opened.hardware),
                judge=_StepJudge(opened, watched),
                recorder=watched,
                hardware=opened.hardware,
                options=SearchOptions(budget=Budget(steps, left), compiled=False, rehearsal=opened.rehearsal),
                captured=opened.program,
            )
            shown = [s for s in result.progress if s.outcome == Outcome.ACCEPTED]
            times = [ms for s in shown if (ms := s.ms if s.ms is not None else s.estimate_ms) is not None]
            judged = [s for s in result.progress if s.index > 0 and s.outcome in list(Outcome)]
            stopped = any(s.outcome == STOP for s in result.progress)
            self.send(
                EpisodeRow(
                    program=job.program, policy=job.policy, seed=job.seed, steps=steps, judged=result.steps,
                    measured=sum(s.measured for s in judged), actions=len(result.path),
                    best_ms=min(times, default=None),
                    cut=result.interrupted or (not stopped and result.steps < steps and self.clock() >= job.deadline),
                )
            )  # fmt: skip


class _StepJudge:
    """The lane's judge for an episode: baselines once, and no final check, which is not what is compared here."""

    def __init__(self, opened: Opened, recorder: Recorder) -> None:
        self._opened, self._recorder = opened, recorder

    def baselines(self, *, compiled: bool = True, max_autotune: bool = False) -> Baselines:
        if self._opened.baselines is None:
            self._opened.baselines = self._opened.judge.baselines(compiled=False)
        return self._opened.baselines

    def evaluate(
        self,
        candidate: Candidate,
        *,
        final: bool = False,
        floor_bytes: int | None = None,
        estimate_ms: float | None = None,
    ) -> Evaluation:
        known = self._recorder.lookup(candidate.source) if final else None
        return known or self._opened.judge.evaluate(candidate, floor_bytes=floor_bytes, estimate_ms=estimate_ms)


def _watching(recorder: Recorder, program: str, part: str, send: Callable[[Row], None]) -> Recorder:
    """The recorder, which also sends a row for each step that was measured; there is no final check to keep."""
    record = recorder.step

    def step(**given: Any) -> None:
        record(**given)
        evaluation, child = given["evaluation"], given["child"]
        if evaluation is None or child is None or not given["measured"]:
            return
        line = given.get("action")
        path = (*given["path"], line) if line else given["path"]
        _, code_s, wall_s = given["times_s"]
        parent = given["parent"] if line else None
        send(node_row(program, part, path, parent, child, given["source"], evaluation, True, (code_s, wall_s)))

    recorder.step = step  # type: ignore[method-assign]
    recorder.final = lambda source, evaluation: None  # type: ignore[method-assign]
    return recorder


# ---- parts that the tree and the repeats share ----------------------------------------------------------------


def opened_draft(opened: Opened, path: tuple[str, ...]) -> Draft:
    """The state behind the printed actions of a path."""
    from mtmc.search.draft import Draft

    if path not in opened.drafts:
        if not path:
            opened.drafts[path] = Draft(opened.program, opened.rehearsal.program if opened.rehearsal else None, ())
        else:
            before = opened_draft(opened, path[:-1])
            opened.drafts[path] = step(opened, before, catalog.parse(path[-1]), path[-1])
    return opened.drafts[path]


def step(opened: Opened, draft: Draft, action: Action, line: str) -> Draft:
    from mtmc.search.rehearsal import follow

    program = catalog.apply(draft.program, action, opened.hardware)
    small = follow(draft.small, action, program, opened.hardware) if draft.small else None
    return replace(draft, program=program, small=small, path=(*draft.path, line))


def render(opened: Opened, draft: Draft) -> Candidate:
    """The file that is judged: of the small copy where one runs instead."""
    return codegen.render(draft.small or draft.program, opened.judged_problem)


def evaluate(opened: Opened, program: Program, judged: Candidate) -> Evaluation:
    return opened.judge.evaluate(
        judged, floor_bytes=floor_bytes(opened.program), estimate_ms=program_ms(program, opened.hardware)
    )


def node_row(
    name: str,
    part: str,
    path: tuple[str, ...],
    parent: Program | None,
    program: Program,
    source: str,
    found: Evaluation,
    measured: bool,
    times_s: tuple[float, float],
) -> NodeRow:
    """A verdict as a row. ``times_s``: coding, and the whole node."""
    from mtmc.data.step import content_hash

    accepted = found.outcome is Outcome.ACCEPTED
    times = measured_times(program, found) if accepted else None
    ms = found.ms if found.ms is not None else found.estimate_ms
    code_s, wall_s = times_s
    return NodeRow(
        program=name,
        part=part,
        depth=len(path),
        path=path,
        parent=structural_hash(parent) if parent else "",
        state=structural_hash(program),
        source=content_hash(source),
        outcome=found.outcome,
        message=found.message[:MESSAGE],
        ms=ms if accepted else None,
        spread=found.timing.spread if accepted and found.timing else None,
        eager_ms=found.reference_timing.median_ms if found.reference_timing else None,
        kernel_ms=sum(times.values()) if times else None,
        kernels=len(program.kernels),
        measured=measured,
        same="" if measured else "source",
        code_s=round(code_s, 4),
        build_s=found.build_s if measured else 0.0,
        judge_s=found.judge_s if measured else round(wall_s - code_s, 4),
        gpu_lock_s=found.gpu_lock_s if measured else 0.0,
    )


def _again(known: NodeRow, index: Index, path: tuple[str, ...], parent: str) -> NodeRow:
    """Another way to a state that has a verdict."""
    return known.model_copy(
        update={
            "index": index, "depth": len(index), "path": path, "parent": parent, "measured": False, "same": "state",
            "part": EXHAUSTIVE, "code_s": 0.0, "build_s": 0.0, "judge_s": 0.0, "gpu_lock_s": 0.0,
        }
    )  # fmt: skip


def _child_hash(program: Program, action: Action, hardware: Hardware) -> str:
    try:
        return structural_hash(catalog.apply(program, action, hardware))[:SHORT]
    except IRError:
        return ""


def _recorder(opened: Opened, policy: str, seed: int, command: str) -> Recorder:
    from mtmc.search.driver import versions
    from mtmc.search.recorder import Recorder

    return Recorder(
        opened.store, opened.judged_problem, versions=versions(), hardware=opened.card, protocol=opened.protocol,
        policy=policy, coder="compiler/1", seed=seed, search={"strategy": "economy", "final": False}, command=command,
    )  # fmt: skip
