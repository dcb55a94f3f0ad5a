"""The loop of mtmc, once through: capture, baselines, then propose, choose, rewrite, render, judge, record, until the
policy stops or the budget ends; at last the best program under the full protocol.

``driver.py`` puts the parts together that this loop is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from mtmc.actions import catalog
from mtmc.actions.action import Action
from mtmc.actions.regions import members
from mtmc.capture import capture
from mtmc.codegen import module as codegen
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, Outcome
from mtmc.data.hardware import Hardware
from mtmc.env import observation
from mtmc.env.policy import Policy
from mtmc.env.profile import estimated_times, measured_times
from mtmc.env.region import sources
from mtmc.env.state import Attempt, State
from mtmc.errors import CodegenError, CoderError, IRError, JudgeError
from mtmc.ir.codec import structural_hash
from mtmc.ir.cost import floor_bytes, program_ms
from mtmc.ir.program import Program
from mtmc.micro.coder import Coder, Feedback
from mtmc.problem.problem import Problem
from mtmc.search.budget import Spending
from mtmc.search.draft import Choice, Draft
from mtmc.search.greedy import NOT_TAKEN, Greedy, Taken
from mtmc.search.library import LibraryTimes
from mtmc.search.node import Node
from mtmc.search.options import Judge, SearchOptions
from mtmc.search.recorder import Recorder
from mtmc.search.rehearsal import follow
from mtmc.search.result import SKETCHED, STOP, Progress, SearchResult

CANDIDATES = 64
"""Most candidates for one decision."""
FINAL_TRIES = 3
"""How many of the best states get a final check until one passes."""
DRAFTS = 32
"""Most steps in a row that are judged together."""
GAIN = 0.005
"""Relative gain below which a step is no new best."""
START = "as captured"
"""What the untouched program is called where an action line stands."""


def search(
    problem: Problem,
    *,
    policy: Policy,
    coder: Coder,
    judge: Judge,
    recorder: Recorder,
    hardware: Hardware,
    options: SearchOptions,
    captured: Program | None = None,
    on_step: Callable[[Progress], None] = lambda step: None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> SearchResult:
    """Search for a faster program that computes the same.

    Args:
        problem: what to optimise; the judge must judge this one.
        hardware: of the card that measures, or the one that estimates are for.
        captured: its Program where the caller has it already.
        on_step: called after every judged step, the captured program included.
        on_phase: called with a few words before what takes time.

    Returns:
        The best program under the full protocol. Ctrl-C gives the best so far, flagged ``interrupted``.

    Raises:
        ProblemError, CaptureError: the problem is not usable.
        JudgeError: not even the captured program could be judged.
        KeyboardInterrupt: before anything was judged.
    """
    return _Search(problem, policy, coder, judge, recorder, hardware, options, on_step, on_phase).run(captured)


class _Search:
    """The state of one search; read ``run`` first."""

    def __init__(
        self,
        problem: Problem,
        policy: Policy,
        coder: Coder,
        judge: Judge,
        recorder: Recorder,
        hardware: Hardware,
        options: SearchOptions,
        on_step: Callable[[Progress], None],
        on_phase: Callable[[str], None],
    ) -> None:
        self.problem, self.policy, self.coder, self.judge = problem, policy, coder, judge
        self.recorder, self.hardware, self.options = recorder, hardware, options
        self.on_step, self.on_phase = on_step, on_phase
        self.spending = Spending(options.budget)
        self.baselines = Baselines()
        self.progress: list[Progress] = []
        self.nodes: list[Node] = []
        self.history: list[Attempt] = []
        self.failed: set[tuple[str, ...]] = set()
        self.library = LibraryTimes()
        self.notes: list[str] = []
        self.careful = False
        """Judge every step on its own: a row of steps judged together was rejected."""
        self.gpu_lock_s = 0.0
        self.began = time.monotonic()

    def run(self, captured: Program | None) -> SearchResult:
        interrupted = False
        greedy: Greedy | None = None
        try:
            self.on_phase("capturing")
            program = captured or capture(self.problem)
            self.floor = floor_bytes(program)
            greedy = self._start(program)
            self._loop(greedy)
        except KeyboardInterrupt:
            if greedy is None:
                self.recorder.end(state="interrupted", message="interrupted before anything was judged")
                raise
            interrupted = True
        except JudgeError as error:
            if greedy is None:
                self.recorder.end(state="failed", message=error.message)
                raise
            self.notes.append(f"the search ended early: {error.message}")
        node, final = greedy.best, greedy.best.evaluation
        if not interrupted:
            try:
                node, final = self._final(greedy)
            except KeyboardInterrupt:
                interrupted = True
            except JudgeError as error:
                self.notes.append(f"the final check gave no verdict: {error.message}")
        if interrupted:
            self.notes.append("interrupted: the best program so far had no final check")
        return self._result(program, node, final, interrupted)

    # ---- the parts of a search

    def _start(self, program: Program) -> Greedy:
        """Baselines, and the captured program itself as the first judged state."""
        self.on_phase("measuring eager and torch.compile" if self.options.compiled else "running the reference")
        self.baselines = self.judge.baselines(compiled=self.options.compiled, max_autotune=self.options.max_autotune)
        self.gpu_lock_s += self.baselines.gpu_lock_s
        self.on_phase("judging the program as captured")
        began = time.monotonic()
        small = self.options.rehearsal.program if self.options.rehearsal else None
        draft = Draft(program, small, ())
        candidate, judged = self._render(draft)
        evaluation, measured = self._judge(draft, judged)
        self.start = Node(program, candidate, evaluation, (), small)
        self._keep(self.start)
        accepted = self.start.accepted
        self.recorder.step(
            index=0, parent=program, path=(), child=program, source=judged.source, evaluation=evaluation,
            measured=measured, became=Taken(True, accepted), times_s=(0.0, 0.0, time.monotonic() - began),
        )  # fmt: skip
        became = Taken(True, accepted)
        self._show(_progress(0, START, evaluation, measured, became))
        return Greedy(self.start, self.options.patience, GAIN, self._eligible)

    def _loop(self, greedy: Greedy) -> None:
        if greedy.current.evaluation.outcome is Outcome.REFERENCE_ERROR:
            return
        while not self.spending.spent and self._step(greedy):
            continue

    def _step(self, greedy: Greedy) -> bool:
        """Decisions until one is judged; False where the policy stopped."""
        parent = greedy.current
        draft = Draft(parent.program, parent.small, parent.path)
        sketched: tuple[Draft, Choice] | None = None
        for number in range(DRAFTS):
            choice = self._choose(draft, parent if sketched is None else None, greedy.best)
            if choice.action.kind == STOP:
                if sketched is None:
                    self._record(draft, choice)
                    self._show(Progress(len(self.progress), choice.line, STOP, measured=False))
                    return False
                draft, choice = sketched  # nothing more to add: judge what there is
                break
            if choice.decision.judge or self.careful or self.spending.spent or number == DRAFTS - 1:
                break
            after = self._sketch(draft, choice)
            if after is not None:
                draft, sketched = after, (draft, choice)
        feedback: list[Feedback] = []
        for _ in range(self.coder.tries):
            self.spending.steps += 1
            if self._attempt(greedy, draft, choice, feedback) or self.spending.spent:
                break
        return True

    def _choose(self, draft: Draft, node: Node | None, best: Node) -> Choice:
        """Propose, observe, ask the policy. ``node``: where the draft was judged."""
        began = time.monotonic()
        state, cut = self._state(draft, node, best)
        lines = [action.describe(draft.program) for action in state.actions]
        text = observation.render(state, lines) if self.policy.reads_text else ""
        decision = self.policy.choose(text, lines, state)
        action, line = state.actions[decision.index], lines[decision.index]
        return Choice(action, line, lines, cut, decision, text, time.monotonic() - began)

    def _sketch(self, draft: Draft, choice: Choice) -> Draft | None:
        """One step that is not judged on its own; None where it can't be coded."""
        began = time.monotonic()
        try:
            after = self._rewrite(draft, choice, [])
        except (IRError, CoderError) as error:
            evaluation = Evaluation(outcome=Outcome.BUILD_ERROR, stage="code", message=error.message)
            self.failed.add(self._mask(draft.program, choice.action))
            self.history.append(Attempt(choice.line, evaluation.outcome, None, error.message))
            self._record(draft, choice, evaluation=evaluation, code_s=time.monotonic() - began)
            return None
        self._record(draft, choice, after, code_s=time.monotonic() - began)
        self._show(Progress(len(self.progress), choice.line, SKETCHED, measured=False, became_current=True))
        return after

    def _attempt(self, greedy: Greedy, draft: Draft, choice: Choice, feedback: list[Feedback]) -> bool:
        """Code and judge one action once, record it, move on; True where it was accepted."""
        began = time.monotonic()
        after: Draft | None = None
        judged: Candidate | None = None
        node: Node | None = None
        measured = False
        became = NOT_TAKEN
        try:
            after = self._rewrite(draft, choice, feedback)
            candidate, judged = self._render(after)
        except (IRError, CoderError, CodegenError) as error:
            evaluation = Evaluation(outcome=Outcome.BUILD_ERROR, stage="code", message=error.message)
            coded = time.monotonic() - began
        else:
            coded = time.monotonic() - began
            self.on_phase(f"judging: {choice.line}")
            evaluation, measured = self._judge(after, judged)
            node = Node(after.program, candidate, evaluation, after.path, after.small)
        parent = greedy.current
        if node is not None and node.accepted:
            became = greedy.take(node)
            self._keep(node)
        else:
            feedback.append(Feedback(evaluation.outcome, evaluation.message, judged.source if judged else ""))
        if draft.path == parent.path or (node is not None and node.accepted):
            # What was taken here is masked, whatever it gave: the same choice again would teach nothing.
            self.failed.add(self._mask(draft.program, choice.action))
        if draft.path != parent.path and not became.best:
            # One of several steps is at fault, or costs what the others gain: from here on one by one.
            self.careful = True
        self._record(draft, choice, after, judged, evaluation, measured, became, code_s=coded,
                     wall_s=time.monotonic() - began)  # fmt: skip
        change = parent.cost_ms / node.cost_ms if node is not None and node.accepted else None
        self.history.append(Attempt(choice.line, evaluation.outcome, change, evaluation.message))
        self._show(_progress(len(self.progress), choice.line, evaluation, measured, became))
        return node is not None and node.accepted

    def _final(self, greedy: Greedy) -> tuple[Node, Evaluation]:
        """The full protocol on the best state; where it is rejected, on the next best, and last on the start."""
        if not self._eligible(greedy.best):
            return greedy.best, self._not_eligible(greedy.best)
        ranked = sorted(filter(self._eligible, self.nodes), key=lambda node: node.rank)[:FINAL_TRIES]
        start = [node for node in self.nodes[:1] if not node.path and self._eligible(node)]
        node, evaluation = greedy.best, greedy.best.evaluation
        for node in {n.candidate.key: n for n in (greedy.best, *ranked, *start) if n.accepted}.values():
            self.on_phase("final check of the best program")
            _, judged = self._render(Draft(node.program, node.small, node.path))
            evaluation = self._evaluate(node.program, judged, final=True)
            self.recorder.final(judged.source, evaluation)
            if evaluation.outcome is Outcome.ACCEPTED:
                break
            self.notes.append(
                f"the final check rejected the program after '{node.path[-1] if node.path else START}': "
                f"{evaluation.outcome}, {evaluation.message}"
            )
        return node, evaluation

    def _eligible(self, node: Node) -> bool:
        return node.pure or not self.options.pure

    def _not_eligible(self, node: Node) -> Evaluation:
        if not node.accepted:
            return node.evaluation
        kernels = ", ".join(f"{k} ({node.program.kernel(k).note})" for k in node.candidate.library_kernels)
        message = f"No program without library compute was found: PyTorch still runs {kernels}."
        return Evaluation(outcome=Outcome.STATIC_REJECT, stage="pure", message=message)

    def _result(self, program: Program, node: Node, final: Evaluation, interrupted: bool) -> SearchResult:
        wall = time.monotonic() - self.began
        self.recorder.end(
            state="interrupted" if interrupted else "finished", message="; ".join(self.notes),
            start=self.start, best=node, final=final, baselines=self.baselines,
            steps=self.spending.steps, wall_s=wall,
        )  # fmt: skip
        return SearchResult(
            problem=self.problem,
            captured=program,
            node=node,
            best=final,
            baselines=self.baselines,
            progress=tuple(self.progress),
            hardware=self.hardware,
            interrupted=interrupted,
            notes=tuple(self.notes),
            wall_s=wall,
            gpu_lock_s=self.gpu_lock_s,
        )

    # ---- small parts

    def _state(self, draft: Draft, node: Node | None, best: Node) -> tuple[State, int]:
        """What the policy decides on, and how many legal actions the quota cut. ``node``: where it was judged."""
        program = draft.program
        measured = measured_times(program, node.evaluation) if node else None
        times = measured or estimated_times(program, self.hardware)
        state = State(program=program, hardware=self.hardware, times_ms=times)
        found = catalog.propose(program, self.hardware, state.shares, CANDIDATES)
        eager = self.baselines.eager
        return replace(
            state,
            actions=tuple(action for action in found.actions if self._mask(program, action) not in self.failed),
            step=len(self.progress),
            steps_left=self.spending.steps_left,
            seconds_left=self.spending.seconds_left,
            measured=measured is not None,
            library_ms=self.library.of(program) if measured else {},
            ms=_finite(node.cost_ms) if node else None,
            best_ms=_finite(best.cost_ms),
            eager_ms=eager.median_ms if eager else None,
            history=tuple(self.history),
            sources=sources(program, node.candidate if node else None, self.problem.text)
            if self.policy.reads_text
            else {},
        ), found.cut

    def _rewrite(self, draft: Draft, choice: Choice, feedback: list[Feedback]) -> Draft:
        program = self.coder.rewrite(draft.program, choice.action, feedback)
        small = follow(draft.small, choice.action, program, self.hardware) if draft.small else None
        return Draft(program, small, (*draft.path, choice.line))

    def _render(self, draft: Draft) -> tuple[Candidate, Candidate]:
        """The file for the user, and the one that is judged: another only where a small copy runs instead."""
        candidate = codegen.render(draft.program, self.problem)
        if draft.small is None or self.options.rehearsal is None:
            return candidate, candidate
        return candidate, codegen.render(draft.small, self.options.rehearsal.problem)

    def _record(
        self,
        draft: Draft,
        choice: Choice,
        after: Draft | None = None,
        judged: Candidate | None = None,
        evaluation: Evaluation | None = None,
        measured: bool = False,
        became: Taken = NOT_TAKEN,
        code_s: float = 0.0,
        wall_s: float = 0.0,
    ) -> None:
        self.recorder.step(
            index=len(self.progress),
            parent=draft.program,
            path=draft.path,
            child=after.program if after else None,
            source=judged.source if judged else "",
            evaluation=evaluation,
            measured=measured,
            became=became,
            actions=choice.lines,
            actions_cut=choice.cut,
            action=choice.line,
            probabilities=choice.decision.probabilities,
            observation=choice.observation,
            times_s=(choice.decide_s, code_s, choice.decide_s + max(code_s, wall_s)),
        )

    def _mask(self, program: Program, action: Action) -> tuple[str, ...]:
        """An action is masked for as long as the kernels that it names stay what they are."""
        named = [kernel for region in action.region if region != "all" for kernel in members(program, region)]
        kernels = [structural_hash(kernel, program) for kernel in named]
        return (str(action), *(kernels or [structural_hash(program)]))

    def _judge(self, draft: Draft, judged: Candidate) -> tuple[Evaluation, bool]:
        """The verdict, and whether it was measured now: equal candidates are not measured twice."""
        known = self.recorder.lookup(judged.source)
        if known is not None:
            return known, False
        evaluation = self._evaluate(draft.program, judged)
        self.recorder.remember(judged.source, evaluation)
        return evaluation, True

    def _evaluate(self, program: Program, judged: Candidate, final: bool = False) -> Evaluation:
        evaluation = self.judge.evaluate(
            judged, final=final, floor_bytes=self.floor, estimate_ms=program_ms(program, self.hardware)
        )
        self.gpu_lock_s += evaluation.gpu_lock_s
        return evaluation

    def _keep(self, node: Node) -> None:
        if node.accepted:
            self.nodes.append(node)
        self.library.learn(node.program, measured_times(node.program, node.evaluation) or {})

    def _show(self, step: Progress) -> None:
        self.progress.append(step)
        self.on_step(step)


def _finite(ms: float) -> float | None:
    return ms if math.isfinite(ms) else None


def _progress(index: int, line: str, evaluation: Evaluation, measured: bool, became: Taken) -> Progress:
    return Progress(
        index=index,
        action=line,
        outcome=evaluation.outcome,
        message=evaluation.message,
        ms=evaluation.ms,
        estimate_ms=evaluation.estimate_ms,
        speedup=evaluation.speedup,
        became_current=became.current,
        became_best=became.best,
        measured=measured,
    )
