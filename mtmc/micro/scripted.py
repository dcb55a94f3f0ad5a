"""A coder that answers from a list, as a language model would answer: with text. For tests and replays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mtmc.actions.action import Action
from mtmc.actions.regions import members
from mtmc.errors import CoderError
from mtmc.ir.program import Program
from mtmc.micro.coder import Feedback
from mtmc.micro.source import with_source


class ScriptedCoder:
    """Gives one answer a call, right, wrong or malformed; what became of the last one is in ``heard``."""

    name = "scripted/1"

    def __init__(self, answers: Iterable[str], tries: int = 1) -> None:
        self._answers: Iterator[str] = iter(answers)
        self.tries = tries
        self.heard: list[Feedback] = []
        """All feedback that came with the requests, in order."""

    def rewrite(self, program: Program, action: Action, feedback: Sequence[Feedback] = ()) -> Program:
        self.heard += feedback[-1:]
        kernels = [kernel for region in action.region for kernel in members(program, region)]
        if len(kernels) != 1:
            raise CoderError(f"The scripted coder writes one kernel at a time, not the {len(kernels)} of this action.")
        answer = next(self._answers, None)
        if answer is None:
            raise CoderError("The scripted coder has no answer left.")
        return with_source(program, kernels[0].id, answer)
