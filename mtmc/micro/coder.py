"""The seam between deciding and doing: a coder rewrites one region of a Program.

``compiler.py`` rewrites by rule and is the default; ``scripted.py`` answers from a list, as tests and replays need; a
language model is one more file with this interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mtmc.actions.action import Action
from mtmc.ir.program import Program


@dataclass(frozen=True)
class Feedback:
    """What an earlier attempt at the same action led to: all that a coder may learn from it."""

    outcome: str
    """An ``Outcome`` value."""
    message: str
    source: str = ""
    """What that attempt had written for the region."""


class Coder(Protocol):
    """``action`` done on ``program``; never touches another region, and never judges its own work."""

    @property
    def name(self) -> str:
        """Name and version, for the store."""
        ...

    @property
    def tries(self) -> int:
        """How often one action is asked for until it is accepted, each time with the feedback on the last one; 1 where
        the same question always gets the same answer."""
        ...

    def rewrite(self, program: Program, action: Action, feedback: Sequence[Feedback] = ()) -> Program:
        """The Program after the action.

        Raises:
            IllegalAction: the action does not apply to this Program.
            CoderError: there is no usable source for the region.
        """
        ...
