"""What a decision stands on: the Program, what it costs now, what is left to spend and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mtmc.actions.action import Action
from mtmc.data.hardware import Hardware
from mtmc.ir.program import Program


@dataclass(frozen=True)
class Attempt:
    """One earlier step, as far as a decision may use it."""

    action: str
    """The printed line."""
    outcome: str
    """An ``Outcome`` value."""
    change: float | None = None
    """Time before over time after: above 1 it got faster. None where nothing was timed."""
    message: str = ""


@dataclass(frozen=True)
class State:
    """The Program is the state; the rest says where the search stands."""

    program: Program
    hardware: Hardware
    """The card that measures, or the one that estimates are for."""
    actions: tuple[Action, ...] = ()
    """The candidates, behind the printed lines and in their order; failed ones are already left out."""
    step: int = 0
    steps_left: int = 0
    seconds_left: float | None = None
    times_ms: Mapping[str, float] = field(default_factory=dict)
    """Kernel id to milliseconds, measured in the current program where ``measured``, else the roofline's estimate."""
    measured: bool = False
    """Whether all times here were measured; never a mixture."""
    library_ms: Mapping[str, float] = field(default_factory=dict)
    """Kernel id to what the library was measured to take for the same kernel in this search, where it was."""
    ms: float | None = None
    """Time of the current program."""
    best_ms: float | None = None
    eager_ms: float | None = None
    history: tuple[Attempt, ...] = ()
    """Oldest first."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Kernel id to what runs it now: generated source, or the user's own lines for a library kernel."""

    @property
    def shares(self) -> dict[str, float]:
        """Kernel id to its share of the summed kernel times, 0 to 1."""
        total = sum(self.times_ms.values())
        return {name: ms / total if total else 0.0 for name, ms in self.times_ms.items()}
