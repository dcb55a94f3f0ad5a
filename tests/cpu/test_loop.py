"""The whole loop with the real capture, judge and interpreter, at sizes that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtmc.actions.trace import replay
from mtmc.data.evaluation import Outcome
from mtmc.env.policy import ScriptedText
from mtmc.micro.scripted import ScriptedCoder
from mtmc.problem import Problem, load_problem
from mtmc.search.driver import optimize_problem
from mtmc.search.output import written_source
from mtmc.search.result import STOP
from mtmc.store.store import Store

SMALL = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(48, 32)

    def forward(self, x):
        y = torch.tanh(self.fc(x))
        return torch.softmax(y * 3.0, dim=-1)


def get_inputs():
    return [torch.rand(16, 48)]


def get_init_inputs():
    return []
"""
LARGE = SMALL.replace("16, 48", "ROWS, 48").replace("import torch\n", "import torch\n\nROWS = 65536\n", 1)

ONE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x)


def get_inputs():
    return [torch.rand(8, 16)]
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store.sqlite")


def text_policy(*starts: str) -> ScriptedText:
    wanted = list(starts)

    def answer(observation: str, candidates) -> str:
        assert "kernels:" in observation and "candidates:" in observation
        start = wanted.pop(0) if wanted else STOP
        return next(line for line in candidates if line.startswith(start))

    return ScriptedText(answer)


def test_finds_a_right_program_with_fewer_kernels(store: Store) -> None:
    result = optimize_problem(load_problem(SMALL), steps=4, store=store)
    assert result.correct and result.winner is None
    assert len(result.program.kernels) == 2 < len(result.captured.kernels)
    assert "@triton.jit" in result.candidate.source
    assert replay(result.captured, "\n".join(result.path)) == result.program
    assert all(error.ok for error in result.best.errors) and len(result.best.errors) > 0
    assert result.best.builds and all(b.registers for b in result.best.builds)
    assert result.best.estimate_ms is not None and result.ms is None
    recorded = list(store.steps())
    assert len(recorded) == len(result.progress)
    assert recorded[-1].policy == "heuristic/1" and recorded[-1].coder == "compiler/1"


def test_equal_candidates_are_judged_once_and_a_run_resumes(store: Store) -> None:
    first = optimize_problem(load_problem(SMALL), steps=2, policy="first", store=store)
    again = optimize_problem(load_problem(SMALL), steps=2, policy="first", store=store)
    assert [s.action for s in again.progress] == [s.action for s in first.progress]
    assert any(s.measured for s in first.progress) and not any(s.measured for s in again.progress)


def test_large_inputs_are_judged_on_a_small_copy_and_written_at_full_size(store: Store) -> None:
    result = optimize_problem(load_problem(LARGE), steps=2, store=store)
    assert result.correct
    assert any("ROWS 65536 -> " in note for note in result.notes)
    source = written_source(result, "mtmc optimize x.py --check y.py")
    assert "65536" in source and "Verify again: mtmc optimize x.py --check y.py" in source
    assert {b.function for b in result.best.builds} == {s.function for s in result.candidate.signatures}


RIGHT = """I multiply nothing, so this is one launch.

```python
import torch


def k0(x, out):
    torch.exp(x, out=out)
```
"""
WRONG = RIGHT.replace("torch.exp(x, out=out)", "torch.exp(x * 1.001, out=out)")
CRASH = RIGHT.replace("torch.exp(x, out=out)", "raise RuntimeError('no such kernel')")
CUT = RIGHT.rsplit("```", 1)[0]


@pytest.mark.parametrize(
    ("answers", "outcomes"),
    [
        ([RIGHT], [Outcome.ACCEPTED]),
        ([WRONG], [Outcome.WRONG_RESULT]),
        ([CUT], [Outcome.BUILD_ERROR]),
        ([CRASH, WRONG, RIGHT], [Outcome.RUN_ERROR, Outcome.WRONG_RESULT, Outcome.ACCEPTED]),
    ],
)
def test_the_seam_of_a_language_model(answers: list[str], outcomes: list[Outcome], store: Store) -> None:
    coder = ScriptedCoder(answers, tries=len(answers))
    policy = text_policy("tile k0 (exp, line 6)")
    result = optimize_problem(load_problem(ONE), steps=len(answers), policy=policy, coder=coder, store=store)
    assert [s.outcome for s in result.progress[1 : len(answers) + 1]] == outcomes
    assert len(coder.heard) == len(answers) - 1
    assert result.correct, "whatever the coder wrote, the result is right"
    if outcomes[-1] is Outcome.ACCEPTED:
        assert "torch.exp(x, out=out)" in result.candidate.source


def test_every_random_walk_stays_right(store: Store) -> None:
    for seed in range(2):
        problem = Problem(name=f"walk{seed}", text=SMALL)
        result = optimize_problem(problem, steps=3, policy="random", seed=seed, patience=9, store=store)
        wrong = [s for s in result.progress if s.outcome is Outcome.WRONG_RESULT]
        assert result.correct and not wrong, wrong
