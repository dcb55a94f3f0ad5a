"""A judged state of the search."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.ir.program import Program


@dataclass(frozen=True)
class Node:
    """A Program, the file it was rendered to, and the verdict on that."""

    program: Program
    candidate: Candidate
    evaluation: Evaluation
    path: tuple[str, ...] = ()
    """Action lines from the captured program to this one."""
    small: Program | None = None
    """The same steps on a smaller copy of the problem, which is what a machine without a GPU runs."""

    @property
    def accepted(self) -> bool:
        return self.evaluation.outcome is Outcome.ACCEPTED

    @property
    def cost_ms(self) -> float:
        """Measured milliseconds, or the estimate on a machine that measures nothing; infinite where rejected. One
        search compares only one kind: a judge with a GPU times everything that it accepts."""
        if not self.accepted:
            return math.inf
        ms = self.evaluation.ms if self.evaluation.ms is not None else self.evaluation.estimate_ms
        return math.inf if ms is None else ms

    @property
    def pure(self) -> bool:
        """All compute is in generated kernels."""
        return not self.candidate.library_kernels

    @property
    def rank(self) -> tuple[float, int]:
        """Orders nodes, the best first: by cost, then by how little the library does (estimates often tie)."""
        return self.cost_ms, len(self.candidate.library_kernels)
