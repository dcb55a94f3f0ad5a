"""The judge end to end on the CPU: each way to be wrong gets its own outcome, and the run goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.errors import ProblemError
from mtmc.problem import load_problem
from mtmc.verify import Judge, WorkerPool

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.fc = nn.Linear(f, f)
        self.bn = nn.BatchNorm1d(f)

    def forward(self, x):
        return torch.relu(self.bn(self.fc(x)))


def get_inputs():
    return [torch.rand(32, 16)]


def get_init_inputs():
    return [16]
"""
GOOD = REFERENCE.replace("class Model", "class ModelNew").replace(
    "return torch.relu(self.bn(self.fc(x)))", "y = self.bn(self.fc(x))\n        return y.clamp_min(0)"
)


@pytest.fixture(scope="module")
def judge(pool: WorkerPool) -> Iterator[Judge]:
    with Judge(load_problem(REFERENCE, name="mlp"), pool=pool) as made:
        yield made


def judged(judge: Judge, old: str = "", new: str = "", **how: bool) -> Evaluation:
    assert old in GOOD
    return judge.evaluate(Candidate(source=GOOD.replace(old, new) if old else GOOD), **how)


@pytest.mark.parametrize("final", [False, True])
def test_a_right_candidate_is_accepted_with_its_errors(judge: Judge, final: bool) -> None:
    evaluation = judged(judge, final=final)
    assert evaluation.outcome is Outcome.ACCEPTED, evaluation.message
    outputs = {e.output for e in evaluation.errors}
    assert outputs == {"out0", "state:bn.running_mean", "state:bn.running_var", "state:bn.num_batches_tracked"}
    sets = {e.input_set for e in evaluation.errors}
    assert sets == set(judge.options.final_sets if final else judge.options.step_sets)
    assert evaluation.timing is None and evaluation.gpu_lock_s == 0


def test_an_estimate_is_kept_where_nothing_is_timed(judge: Judge) -> None:
    assert judge.evaluate(Candidate(source=GOOD), estimate_ms=0.25).estimate_ms == 0.25


CASES = {
    "wrong value": ("y.clamp_min(0)", "y.clamp_min(0.01)", Outcome.WRONG_RESULT, "out0 on input set seed0"),
    "zeros": ("y.clamp_min(0)", "torch.zeros_like(y)", Outcome.WRONG_RESULT, "out0"),
    "not a number": ("y.clamp_min(0)", "y.clamp_min(0) / (y != y.max())", Outcome.WRONG_RESULT, "infinite or NaN"),
    "uninitialised": ("y.clamp_min(0)", "torch.empty_like(y)", Outcome.WRONG_RESULT, "infinite or NaN"),
    "low precision": ("y.clamp_min(0)", "y.clamp_min(0).half().float()", Outcome.WRONG_RESULT, "rounded to fp16"),
    "wrong shape": ("y.clamp_min(0)", "y.clamp_min(0)[:4]", Outcome.WRONG_STRUCTURE, "shape (4, 16)"),
    "wrong dtype": ("y.clamp_min(0)", "y.clamp_min(0).double()", Outcome.WRONG_STRUCTURE, "dtype float64"),
    "wrong strides": ("y.clamp_min(0)", "y.clamp_min(0).t().contiguous().t()", Outcome.WRONG_STRUCTURE, "strides"),
    "two results": ("return y.clamp_min(0)", "return y.clamp_min(0), y", Outcome.WRONG_STRUCTURE, "1 tensors"),
    "nested": ("return y.clamp_min(0)", "return [y.clamp_min(0)]", Outcome.WRONG_STRUCTURE, "nested"),
    "changed input": ("return y", "x.add_(1)\n        return y", Outcome.MUTATED_INPUT, "input 0"),
    "no statistics": (
        "self.bn(self.fc(x))",
        "nn.functional.batch_norm(self.fc(x), None, None, self.bn.weight, self.bn.bias, True)",
        Outcome.WRONG_STATE,
        "bn.running_mean",
    ),
    "changed weight": (
        "return y",
        "self.fc.weight.mul_(2)\n        return y",
        Outcome.WRONG_STATE,
        "state:fc.weight",
    ),
    "other parameters": (
        "self.bn = nn.BatchNorm1d(f)",
        "self.bn = nn.BatchNorm1d(f)\n        self.more = nn.Linear(2, 2)",
        Outcome.WRONG_STRUCTURE,
        "more.bias, more.weight is not in the reference",
    ),
    "no class": ("ModelNew", "SomethingElse", Outcome.BUILD_ERROR, "does not define ModelNew"),
    "does not parse": ("def forward(self, x):", "def forward(self, x:", Outcome.BUILD_ERROR, "does not parse"),
    "does not import": ("from torch import nn", "from torch import nn, nothing", Outcome.BUILD_ERROR, "ImportError"),
    "raises": ("return y", "raise ValueError('no luck')", Outcome.RUN_ERROR, "no luck"),
    "exits": ("return y", "raise SystemExit(3)", Outcome.RUN_ERROR, "SystemExit"),
    "hog": ("return y", "torch.ones(1 << 50)\n        return y", Outcome.OUT_OF_MEMORY, "memory"),
    "compiles": ("return y", "torch.compile(self.fc)\n        return y", Outcome.STATIC_REJECT, "no-torch-compile"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_fault_gets_its_outcome_and_says_why(judge: Judge, name: str) -> None:
    old, new, outcome, says = CASES[name]
    evaluation = judged(judge, old, new)
    assert (evaluation.outcome, says in evaluation.message) == (outcome, True), evaluation.message
    assert evaluation.stage and evaluation.timing is None


def test_a_run_error_names_the_candidates_line(judge: Judge) -> None:
    message = judged(judge, "return y", "raise ValueError('no luck')").message
    assert "line 14: `raise ValueError('no luck').clamp_min(0)`" in message


@pytest.mark.parametrize(
    ("statement", "outcome", "says"),
    [
        ("import os; os.abort()", Outcome.RUN_ERROR, "SIGABRT"),
        ("import os; os._exit(0)", Outcome.RUN_ERROR, "exited with code 0"),
        ("import os; os.kill(os.getpid(), 9)", Outcome.RUN_ERROR, "SIGKILL"),
        ("while True: x = x + 0", Outcome.TIMEOUT, "no answer within 8 s"),
    ],
)
def test_a_lost_process_is_an_outcome_and_the_next_candidate_is_judged(
    judge: Judge, statement: str, outcome: Outcome, says: str
) -> None:
    judge.options = judge.options.model_copy(update={"static_rules": False})
    evaluation = judged(judge, "return y", f"{statement}\n        return y")
    assert (evaluation.outcome, says in evaluation.message) == (outcome, True), evaluation.message
    judge.options = judge.options.model_copy(update={"static_rules": True})
    assert judged(judge).outcome is Outcome.ACCEPTED


def test_a_result_left_over_from_the_candidate_before_does_not_pass(judge: Judge) -> None:
    assert judged(judge).outcome is Outcome.ACCEPTED
    evaluation = judged(judge, "return y.clamp_min(0)", "out = torch.empty(32, 16)\n        return out")
    assert evaluation.outcome is Outcome.WRONG_RESULT


def test_baselines_without_a_card(judge: Judge) -> None:
    baselines = judge.baselines()
    assert baselines.eager is None and "no GPU" in baselines.compile_error
    assert baselines.eager_error is not None and 0 < baselines.eager_error < 1e-6


def test_a_reference_that_raises_is_a_problem_error(pool: WorkerPool) -> None:
    with Judge(load_problem(REFERENCE.replace("torch.relu(", "torch.relu(1 + "), name="odd"), pool=pool) as judge:
        assert judge.evaluate(Candidate(source=GOOD)).outcome is Outcome.WRONG_RESULT
    broken = REFERENCE.replace("torch.rand(32, 16)", "torch.rand(32, 17)")
    with Judge(load_problem(broken, name="shapes"), pool=pool) as judge:
        with pytest.raises(ProblemError, match="shapes: the reference does not run"):
            judge.baselines()
        evaluation = judge.evaluate(Candidate(source=GOOD))
        assert evaluation.outcome is Outcome.REFERENCE_ERROR
        assert "line 13: `return torch.relu(self.bn(self.fc(x)))`" in evaluation.message
