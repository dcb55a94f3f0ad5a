"""The seam for whoever decides: a Policy picks one of the candidates. ``heuristic.py`` holds the default one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mtmc.env.state import State


@dataclass(frozen=True)
class Decision:
    """``index`` into the candidates."""

    index: int
    probabilities: tuple[float, ...] = ()
    """For every candidate; empty for a policy that has none."""
    judge: bool = True
    """False: the policy is sure to go on from here, so that this step need not be judged on its own. The search judges
    the program at the next step that asks for it, and then every step alone where that was rejected."""


class Policy(Protocol):
    """Chooses from printed candidates, given the printed observation and the state behind it."""

    @property
    def name(self) -> str:
        """Name and version, for the store."""
        ...

    @property
    def reads_text(self) -> bool:
        """False spares rendering the observation: ``choose`` then gets an empty text."""
        ...

    def choose(self, observation: str, candidates: Sequence[str], state: State) -> Decision:
        """One of ``candidates`` (at least one; ``stop`` is among them)."""
        ...


class FirstLegal:
    """The first candidate: the floor that any policy must beat."""

    name = "first/1"
    reads_text = False

    def choose(self, observation: str, candidates: Sequence[str], state: State) -> Decision:
        return Decision(0)


class Random:
    """Uniform over the candidates; the seed decides the whole episode."""

    name = "random/1"
    reads_text = False

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def choose(self, observation: str, candidates: Sequence[str], state: State) -> Decision:
        share = 1.0 / len(candidates)
        return Decision(self._random.randrange(len(candidates)), (share,) * len(candidates))


class ScriptedText:
    """A policy that sees only what a language model would see, and answers with a candidate's text.

    ``answer`` gets the observation and the candidate lines. An answer that is no candidate is an error: a policy must
    not act outside the list.
    """

    name = "scripted/1"
    reads_text = True

    def __init__(self, answer: Callable[[str, Sequence[str]], str]) -> None:
        self._answer = answer

    def choose(self, observation: str, candidates: Sequence[str], state: State) -> Decision:
        line = self._answer(observation, candidates)
        if line not in candidates:
            raise ValueError(f"the scripted policy answered {line!r}, which is no candidate")
        return Decision(list(candidates).index(line))
