from __future__ import annotations

import pytest

from mtmc.data.hardware import H200
from mtmc.env.policy import FirstLegal, Random, ScriptedText
from mtmc.env.state import State

LINES = ["generate all with default schedules", "fuse k0 and k1", "stop"]


def test_first_legal_takes_the_first(chain) -> None:
    assert FirstLegal().choose("", LINES, State(chain(1), H200)).index == 0


def test_random_is_decided_by_its_seed_and_reaches_every_candidate(chain) -> None:
    state = State(chain(1), H200)

    def episode(seed: int) -> list[int]:
        policy = Random(seed)
        return [policy.choose("", LINES, state).index for _ in range(40)]

    assert episode(1) == episode(1) != episode(2)
    assert set(episode(1)) == {0, 1, 2}


def test_random_reports_its_probabilities(chain) -> None:
    decision = Random().choose("", LINES, State(chain(1), H200))
    assert decision.probabilities == pytest.approx([1 / 3] * 3)


def test_a_policy_can_decide_from_the_text_alone(chain) -> None:
    seen: list[str] = []

    def answer(observation: str, candidates) -> str:
        seen.append(observation)
        return next(line for line in candidates if line.startswith("fuse"))

    policy = ScriptedText(answer)
    assert policy.reads_text
    assert policy.choose("the observation", LINES, State(chain(1), H200)).index == 1
    assert seen == ["the observation"]


def test_an_answer_outside_the_list_is_refused(chain) -> None:
    policy = ScriptedText(lambda observation, candidates: "delete everything")
    with pytest.raises(ValueError, match="no candidate"):
        policy.choose("", LINES, State(chain(1), H200))
