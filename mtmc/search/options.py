"""What a search is given: the judge's interface, and how to search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation
from mtmc.search.budget import Budget
from mtmc.search.rehearsal import Rehearsal


class Judge(Protocol):
    """What the search needs of ``mtmc.verify``; tests and replays put their own behind it."""

    def baselines(self, *, compiled: bool = True, max_autotune: bool = False) -> Baselines: ...

    def evaluate(
        self,
        candidate: Candidate,
        *,
        final: bool = False,
        floor_bytes: int | None = None,
        estimate_ms: float | None = None,
    ) -> Evaluation: ...


@dataclass(frozen=True)
class SearchOptions:
    """How to search; what changes a measurement is the judge's."""

    budget: Budget = Budget()
    patience: int = 2
    compiled: bool = True
    """Measure torch.compile too."""
    pure: bool = False
    """Accept no result that calls the library for compute."""
    max_autotune: bool = False
    """Measure its max-autotune mode, too."""
    rehearsal: Rehearsal | None = None
    """A small copy that is judged in place of the program."""
