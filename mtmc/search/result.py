"""What a search hands back, and the lines of its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, Outcome
from mtmc.data.hardware import Hardware
from mtmc.env.profile import estimated_times, measured_times
from mtmc.ir.program import Program
from mtmc.problem.problem import Problem
from mtmc.search.node import Node

Winner = Literal["mtmc", "torch.compile", "eager"]

STOP = "stop"
"""The outcome of a step where the policy stopped."""
SKETCHED = "sketched"
"""The outcome of a step that is judged together with the next ones."""
MARGIN = 0.01
"""A program must be faster than a baseline by more than this share to have won: less is noise."""


@dataclass(frozen=True)
class Progress:
    """One step, as it is shown while the search runs."""

    index: int
    """0 is the captured program itself."""
    action: str
    outcome: str
    """An ``Outcome`` value, ``SKETCHED`` or ``STOP``."""
    message: str = ""
    ms: float | None = None
    estimate_ms: float | None = None
    speedup: float | None = None
    """Against eager in the same run; None where nothing was timed."""
    became_current: bool = False
    became_best: bool = False
    measured: bool = True
    """False where the verdict was known from an equal candidate."""


@dataclass(frozen=True)
class SearchResult:
    """The best program, its verdict under the full protocol, and how the search got there."""

    problem: Problem
    captured: Program
    node: Node
    """The program to use."""
    best: Evaluation
    """Its verdict: of the final check, or of its step where the search was interrupted before that."""
    baselines: Baselines
    progress: tuple[Progress, ...]
    hardware: Hardware
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    """What a reader must know: a fall-back, an interruption, a judge that failed."""
    wall_s: float = 0.0
    gpu_lock_s: float = 0.0

    @property
    def program(self) -> Program:
        return self.node.program

    @property
    def candidate(self) -> Candidate:
        return self.node.candidate

    @property
    def path(self) -> tuple[str, ...]:
        """The trace: action lines from the captured program to the best one. It replays."""
        return self.node.path

    @property
    def steps(self) -> int:
        """Judged steps; the captured program and a stop are none."""
        return sum(step.index > 0 and step.outcome not in (STOP, SKETCHED) for step in self.progress)

    @property
    def correct(self) -> bool:
        return self.best.outcome is Outcome.ACCEPTED

    @property
    def pure(self) -> bool:
        """All compute is in generated kernels."""
        return self.node.pure

    @property
    def ms(self) -> float | None:
        return self.best.ms

    @property
    def eager_ms(self) -> float | None:
        """Eager's median, interleaved with the program's own measurement where there is one."""
        timing = self.best.reference_timing or self.baselines.eager
        return timing.median_ms if timing else None

    @property
    def compile_ms(self) -> float | None:
        """torch.compile, default mode; its median beside the program's own measurement where there is one."""
        timing = self.best.compiled_timing or self.baselines.compiled
        return timing.median_ms if timing else None

    @property
    def winner(self) -> Winner | None:
        """The fastest of the three; None where nothing was timed."""
        return winner(self.ms, self.eager_ms, self.compile_ms) if self.correct else None

    @property
    def generated_share(self) -> float | None:
        """Share of the kernels' time, estimated where not measured, that generated kernels take."""
        times = measured_times(self.program, self.best) or measured_times(self.program, self.node.evaluation)
        times = times or estimated_times(self.program, self.hardware)
        total, library = sum(times.values()), set(self.candidate.library_kernels)
        return sum(ms for name, ms in times.items() if name not in library) / total if total else None


def winner(ms: float | None, eager_ms: float | None, compile_ms: float | None) -> Winner | None:
    """Who was fastest; a tie within ``MARGIN`` goes to the baseline. None where the program was not timed."""
    if ms is None:
        return None
    rivals: dict[Winner, float] = {}
    if eager_ms is not None:
        rivals["eager"] = eager_ms
    if compile_ms is not None:
        rivals["torch.compile"] = compile_ms
    if not rivals:
        return "mtmc"
    best = min(rivals, key=lambda name: rivals[name])
    return "mtmc" if ms < rivals[best] * (1.0 - MARGIN) else best
