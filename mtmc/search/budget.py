"""What a search may spend: judged steps and wall seconds, whichever ends first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Budget:
    """``steps``: decisions, whatever became of them. ``seconds``: wall time from the start of the search."""

    steps: int = 8
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 0 or (self.seconds is not None and self.seconds <= 0):
            raise ValueError(f"a budget needs steps >= 0 and seconds > 0, got {self.steps} and {self.seconds}")


@dataclass
class Spending:
    """A budget that runs."""

    budget: Budget
    clock: Callable[[], float] = time.monotonic
    steps: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def steps_left(self) -> int:
        return max(0, self.budget.steps - self.steps)

    @property
    def seconds_left(self) -> float | None:
        return None if self.budget.seconds is None else max(0.0, self.budget.seconds - self.elapsed)

    @property
    def spent(self) -> bool:
        return self.steps_left == 0 or self.seconds_left == 0.0
