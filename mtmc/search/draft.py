"""A Program between two verdicts, and the choice that leads on from it."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.actions.action import Action
from mtmc.env.policy import Decision
from mtmc.ir.program import Program


@dataclass(frozen=True)
class Draft:
    """A Program on its way to be judged."""

    program: Program
    small: Program | None
    path: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """What was decided, from what."""

    action: Action
    line: str
    lines: list[str]
    cut: int
    decision: Decision
    observation: str
    decide_s: float
