"""A problem file: what is refused, in which words, and that what is taken can be built twice alike."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch

from mtmc.errors import ProblemError
from mtmc.problem import Problem, load_problem

GOOD = """
import torch
from torch import nn

rows, cols = 6, 4
N = 64 * 2


class Model(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.fc = nn.Linear(cols, N)

    def forward(self, x):
        return self.fc(x)


def get_inputs():
    return [torch.rand(rows, cols)]


def get_init_inputs():
    return [cols]
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n \n", "is empty"),
        ("def (:\n", "does not parse"),
        ("import torch\ndef get_inputs(): return []\n", "does not define Model"),
        ("class Model: pass\n", "does not define get_inputs"),
    ],
)
def test_unusable_text_is_one_clear_sentence(text: str, says: str) -> None:
    with pytest.raises(ProblemError, match=says) as caught:
        load_problem(text, name="bad")
    assert "bad" in caught.value.message and "\n" not in caught.value.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="does not exist"):
        load_problem(tmp_path / "nowhere.py")


@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        ("return [torch.rand(rows, cols)]", "return [torch.rand(rows, cols) @ torch.rand(3)]", "get_inputs", 19),
        ("self.fc = nn.Linear(cols, N)", "self.fc = nn.Linear(cols, 1 // 0)", "constructor", 12),
        ("N = 64 * 2", "N = undefined", "the file", 6),
    ],
)
def test_errors_of_user_code_carry_the_users_line(old: str, new: str, what: str, line: int) -> None:
    problem = load_problem(GOOD.replace(old, new), name="raises")
    with pytest.raises(ProblemError, match=f"{what}.*line {line} ") as caught:
        problem.instantiate()
    assert new.strip() in caught.value.message


def test_not_a_list_of_inputs() -> None:
    problem = load_problem(GOOD.replace("return [torch.rand(rows, cols)]", "return torch.rand(3)"))
    with pytest.raises(ProblemError, match="get_inputs returned a Tensor"):
        problem.make_inputs()


def test_equal_seeds_build_equal_things_and_other_seeds_do_not() -> None:
    problem = load_problem(GOOD)
    (a, x), (b, y), (c, z) = problem.instantiate(seed=1), problem.instantiate(seed=1), problem.instantiate(seed=2)
    assert torch.equal(a.fc.weight, b.fc.weight) and torch.equal(x[0], y[0])
    assert not torch.equal(a.fc.weight, c.fc.weight) and not torch.equal(x[0], z[0])
    assert a.training


def test_a_file_keeps_its_path_and_text_keeps_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    from_file, from_text = load_problem(path), load_problem(GOOD, name="mine")
    assert from_file.name == "mine" and from_file.key == from_text.key
    model = type(from_text.instantiate()[0])
    assert inspect.getsource(model.forward).strip() == "def forward(self, x):\n        return self.fc(x)"


def test_round_trip_as_json() -> None:
    problem = load_problem(GOOD)
    again = Problem(**json.loads(problem.model_dump_json()))
    assert again == problem and again.key == problem.key


def test_scaled_is_small_runs_and_says_what_changed() -> None:
    text = GOOD.replace("rows, cols = 6, 4", "rows = 4096\ncols = 512").replace("N = 64 * 2", "N = 64 * 16")
    problem = load_problem(text)
    small = problem.scaled(1 << 12)
    module, inputs = small.instantiate()
    assert inputs[0].numel() + module(*inputs).numel() <= 1 << 12
    assert small.flags and "rows 4096 ->" in small.flags[0] and small.key != problem.key
    assert small.text.count("\n") == text.count("\n")
    assert small.scaled(1 << 12) == small
