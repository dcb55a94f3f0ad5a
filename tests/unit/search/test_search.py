"""The loop with a judge that needs no process: what is chosen, kept, masked, recorded and handed back."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtmc.actions.trace import replay
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.data.hardware import H200
from mtmc.data.step import Versions
from mtmc.env.heuristic import Heuristic
from mtmc.env.policy import Decision, FirstLegal, Policy, Random, ScriptedText
from mtmc.errors import JudgeError
from mtmc.ir.codec import from_json
from mtmc.micro.compiler import CompilerCoder
from mtmc.micro.scripted import ScriptedCoder
from mtmc.search.budget import Budget
from mtmc.search.loop import START, search
from mtmc.search.options import SearchOptions
from mtmc.search.recorder import Recorder
from mtmc.search.result import SKETCHED, STOP, Progress, SearchResult
from mtmc.store.store import Store
from tests.unit.search.search_fakes import PROBLEM, FakeJudge, accepted, by_launches, make_chain, rejected

VERSIONS = Versions(vocabulary="1", codegen="1", judge="1")
GENERATE = "generate all with default schedules"


def recorder(store: Store | None = None, policy: str = "test", fresh: bool = False) -> Recorder:
    return Recorder(
        store, PROBLEM, versions=VERSIONS, hardware=H200, protocol={}, policy=policy, coder="compiler/1",
        seed=0, search={}, fresh=fresh,
    )  # fmt: skip


def run(
    judge: FakeJudge,
    policy: Policy,
    *,
    steps: int = 6,
    store: Store | None = None,
    fresh: bool = False,
    coder=None,
    **options,
) -> tuple[SearchResult, list[Progress]]:
    seen: list[Progress] = []
    result = search(
        PROBLEM,
        policy=policy,
        coder=coder or CompilerCoder(H200),
        judge=judge,
        recorder=recorder(store, policy.name, fresh),
        hardware=H200,
        options=SearchOptions(budget=Budget(steps), **options),
        captured=make_chain(),
        on_step=seen.append,
    )
    return result, seen


def picking(*starts: str) -> ScriptedText:
    """Takes the first candidate that starts with the next text; stops when the list ends."""
    wanted = list(starts)

    def answer(observation: str, candidates) -> str:
        text = wanted.pop(0) if wanted else STOP
        return next(line for line in candidates if line.startswith(text))

    return ScriptedText(answer)


def test_the_heuristic_fuses_and_generates_and_its_trace_replays() -> None:
    judge = FakeJudge(by_launches)
    result, _ = run(judge, Heuristic())
    assert result.ms == 1.0 and result.pure and result.winner == "mtmc"
    assert len(result.program.kernels) == 1
    assert replay(make_chain(), "\n".join(result.path)) == result.program
    assert len(judge.seen[1].signatures) == 1, "fusions are judged together"


def test_the_captured_program_comes_first_and_the_best_last() -> None:
    judge = FakeJudge(by_launches)
    result, seen = run(judge, picking(GENERATE))
    assert [step.action for step in seen] == [START, GENERATE, STOP]
    assert judge.seen[0].library_kernels == ("k0", "k1", "k2")
    assert [c.key for c in judge.finals] == [result.candidate.key]
    assert result.steps == 1 and result.eager_ms == 8.0 and result.compile_ms == 5.0
    assert all(floor == 2 * 512 * 1024 * 4 for floor in judge.floors)


def test_a_slower_step_may_become_current_but_the_best_is_returned() -> None:
    times = iter([4.0, 6.0, 7.0])
    result, seen = run(FakeJudge(lambda c, n: accepted(next(times)), lambda c, n: accepted(4.0)), FirstLegal(), steps=2)
    assert [step.became_current for step in seen] == [True, True, True]
    assert [step.became_best for step in seen] == [True, False, False]
    assert result.path == () and result.winner == "mtmc"


def test_who_won_counts_torch_compile() -> None:
    result, _ = run(FakeJudge(lambda c, n: accepted(5.0)), FirstLegal(), steps=0)
    assert result.winner == "torch.compile", "a tie goes to the baseline"


def test_a_rejected_action_is_masked_until_its_region_changes() -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        return by_launches(candidate) if n == 0 else rejected()

    offered: list[list[str]] = []

    class Watching(FirstLegal):
        def choose(self, observation, candidates, state) -> Decision:
            offered.append(list(candidates))
            return Decision(0)

    result, seen = run(FakeJudge(verdict), Watching(), steps=3)
    taken = [step.action for step in seen[1:]]
    assert len(set(taken)) == 3
    assert taken[0] not in offered[1] and taken[0] not in offered[2]
    assert result.path == () and result.correct


def test_steps_judged_together_are_taken_alone_after_a_rejection() -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        # Whatever holds all three operations in one kernel is wrong.
        fused = len(candidate.signatures) + len(candidate.library_kernels) == 1
        return rejected() if fused else by_launches(candidate)

    result, seen = run(FakeJudge(verdict), Heuristic(), steps=8)
    outcomes = [step.outcome for step in seen]
    assert SKETCHED in outcomes and Outcome.WRONG_RESULT in outcomes
    assert SKETCHED not in outcomes[outcomes.index(Outcome.WRONG_RESULT) :]
    assert result.correct and len(result.program.kernels) == 2 and result.ms == 2.0


def test_equal_candidates_are_not_measured_twice(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        first, again = FakeJudge(by_launches), FakeJudge(by_launches)
        one, _ = run(first, Heuristic(), store=store)
        two, seen = run(again, Heuristic(), store=store)
        assert len(first.seen) > 0 and again.seen == [] and len(again.finals) == 1
        assert two.path == one.path and not any(step.measured for step in seen)
        fresh = FakeJudge(by_launches)
        run(fresh, Heuristic(), store=store, fresh=True)
        assert len(fresh.seen) == len(first.seen)


def test_the_store_holds_the_whole_episode(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        result, seen = run(FakeJudge(by_launches), Random(3), store=store, steps=4)
        steps, (episode,) = list(store.steps()), list(store.episodes())
    assert len(steps) == len(seen)
    assert episode.state == "finished" and episode.best_path == result.path
    assert [step.index for step in steps] == list(range(len(steps)))
    decided = steps[1:]
    assert all(step.action in step.actions and len(step.probabilities) == len(step.actions) for step in decided)
    for step in decided:
        if step.child:
            assert replay(from_json(step.parent), step.action) == from_json(step.child)
    assert from_json(steps[0].parent) == make_chain()


def test_the_observation_is_recorded_for_policies_that_read_it(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        run(FakeJudge(by_launches), picking(GENERATE), store=store)
        run(FakeJudge(by_launches), FirstLegal(), store=store, steps=1)
        read = [bool(step.observation) for step in store.steps()]
    assert read == [False, True, True, False, False]


def test_a_final_rejection_falls_back_to_the_next_best_and_says_so() -> None:
    def final(candidate: Candidate, n: int) -> Evaluation:
        return rejected(message="the wide set differs") if n == 0 else by_launches(candidate)

    judge = FakeJudge(by_launches, final)
    result, _ = run(judge, picking("fuse", GENERATE))
    assert result.correct and len(judge.finals) == 2
    assert judge.finals[0].key != judge.finals[1].key == result.candidate.key
    assert "the wide set differs" in result.notes[0]


def test_nothing_right_is_an_honest_result() -> None:
    result, _ = run(FakeJudge(lambda c, n: rejected()), FirstLegal(), steps=2)
    assert not result.correct and result.winner is None and result.best.message


def test_a_broken_reference_ends_the_search_at_once() -> None:
    judge = FakeJudge(lambda c, n: rejected(Outcome.REFERENCE_ERROR, "it raises"))
    result, seen = run(judge, FirstLegal())
    assert len(seen) == 1 and result.best.outcome is Outcome.REFERENCE_ERROR


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_gives_the_best_so_far(at: int) -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        if n == at:
            raise KeyboardInterrupt
        return by_launches(candidate)

    result, _ = run(FakeJudge(verdict), picking("fuse", GENERATE))
    assert result.interrupted and result.correct
    assert len(result.path) == at - 1
    assert "no final check" in result.notes[-1]


def test_ctrl_c_in_the_final_check_keeps_the_best() -> None:
    def final(candidate: Candidate, n: int) -> Evaluation:
        raise KeyboardInterrupt

    result, _ = run(FakeJudge(by_launches, final), picking(GENERATE))
    assert result.interrupted and result.path == (GENERATE,)


def test_ctrl_c_before_anything_was_judged_is_an_interruption(tmp_path: Path) -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        raise KeyboardInterrupt

    with Store.open(tmp_path / "s.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            run(FakeJudge(verdict), FirstLegal(), store=store)
        assert [episode.state for episode in store.episodes()] == ["interrupted"]


def test_a_judge_that_breaks_later_loses_nothing() -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        if n == 2:
            raise JudgeError("the child does not start")
        return by_launches(candidate)

    result, _ = run(FakeJudge(verdict), picking("fuse", GENERATE))
    assert result.correct and len(result.path) == 1
    assert "the child does not start" in result.notes[0]


def test_pure_takes_no_library_compute() -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        return accepted(1.0 if candidate.library_kernels else 9.0)

    result, _ = run(FakeJudge(verdict), picking(GENERATE), pure=True)
    assert result.pure and result.ms == 9.0
    result, _ = run(FakeJudge(verdict), picking(), pure=True)
    assert not result.correct and "k0 (exp, line 6)" in result.best.message


ANSWER = """```python
import torch

def k0(x, out):
    torch.exp(x, out=out)
```"""


def test_a_scripted_coder_writes_one_kernel() -> None:
    judge = FakeJudge(by_launches)
    coder = ScriptedCoder([ANSWER])
    result, seen = run(judge, picking("tile k0"), coder=coder)
    assert seen[1].outcome is Outcome.ACCEPTED
    assert "torch.exp(x, out=out)" in judge.seen[1].source
    assert "k0" not in judge.seen[1].library_kernels


def test_a_malformed_answer_is_a_rejected_step_with_its_reason() -> None:
    judge = FakeJudge(by_launches)
    result, seen = run(judge, picking("tile k0"), coder=ScriptedCoder(["I cannot do that."]))
    assert seen[1].outcome is Outcome.BUILD_ERROR and "holds no code" in seen[1].message
    assert len(judge.seen) == 1 and result.correct


def test_a_coder_hears_why_and_may_try_again() -> None:
    def verdict(candidate: Candidate, n: int) -> Evaluation:
        return rejected(message="off by one") if n == 1 else by_launches(candidate)

    coder = ScriptedCoder([ANSWER, ANSWER.replace("out=out)", "out=out)  # better")], tries=2)
    result, seen = run(FakeJudge(verdict), picking("tile k0"), coder=coder)
    assert [step.outcome for step in seen[1:3]] == [Outcome.WRONG_RESULT, Outcome.ACCEPTED]
    assert [heard.message for heard in coder.heard] == ["off by one"]
    assert "# better" in result.candidate.source or result.path == ()


def test_a_store_that_fails_in_the_middle_costs_only_the_record(tmp_path: Path, monkeypatch) -> None:
    from mtmc.errors import StoreError

    with Store.open(tmp_path / "s.sqlite") as store:

        def full(step) -> str:
            raise StoreError("the disk is full")

        monkeypatch.setattr(store, "record_step", full)
        result, _ = run(FakeJudge(by_launches), Heuristic(), store=store)
    assert result.correct and result.winner == "mtmc"
