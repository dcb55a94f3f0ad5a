"""One line of a result file: what became of one problem. The first line of the file is the header."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, model_validator

from mtmc.data.evaluation import Outcome
from mtmc.data.hardware import Hardware
from mtmc.data.record import Record
from mtmc.data.step import content_hash

FORMAT = 1

# Ends that no judge sees, beside the judge's own ``Outcome``.
PROBLEM_ERROR = "problem_error"
"""The problem file does not load or run."""
CAPTURE_ERROR = "capture_error"
"""torch.export refused it."""
JUDGE_ERROR = "judge_error"
"""The judge reached no verdict, not even on the untouched program."""
WORKER_CRASH = "worker_crash"
"""The worker process died."""
INTERNAL_ERROR = "internal_error"
"""An exception that mtmc did not expect: a bug."""
OUTCOMES = frozenset(
    {*(o.value for o in Outcome), PROBLEM_ERROR, CAPTURE_ERROR, JUDGE_ERROR, WORKER_CRASH, INTERNAL_ERROR}
)


class BenchRow(Record):
    """One problem's result. Times are medians in device milliseconds, measured in the same run."""

    problem: str
    """File stem."""
    number: int
    outcome: str
    """An ``Outcome`` value of the final program, or one of this module's constants."""
    correct: bool
    """The final program met our numeric contract."""
    stock_correct: bool | None = None
    """It also passes stock KernelBench's own check; None where that was not run."""
    pure: bool = False
    """All compute is in generated kernels."""
    generated_share: float | None = Field(default=None, ge=0, le=1)
    """Share of the final program's work (time where measured) in generated kernels."""
    eager_ms: float | None = None
    compile_ms: float | None = None
    """torch.compile, default mode."""
    compile_max_ms: float | None = None
    """torch.compile, max-autotune, where asked for."""
    eager_tf32_ms: float | None = None
    """Eager with TF32 allowed: information, never the baseline."""
    mtmc_ms: float | None = None
    spread: float | None = None
    """Interquartile range over median of ``mtmc_ms``."""
    error: float | None = None
    """Largest norm error of the final program against the float64 oracle."""
    eager_error: float | None = None
    steps: int = 0
    wall_s: float = 0.0
    gpu_lock_s: float = 0.0
    compile_error: str = ""
    """Why ``compile_ms`` is missing, where torch.compile failed."""
    message: str = ""
    """Why it is not correct; required then."""
    actions: tuple[str, ...] = ()
    """The path to the final program: action lines."""
    flags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> BenchRow:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"unknown outcome {self.outcome!r}")
        if self.correct != (self.outcome == Outcome.ACCEPTED):
            raise ValueError(f"correct={self.correct} contradicts outcome {self.outcome}")
        if not self.correct and not self.message:
            raise ValueError("a row that is not correct must say why")
        if not self.correct and self.mtmc_ms is not None:
            raise ValueError("a program that is not correct has no time")
        return self

    @property
    def speedup(self) -> float | None:
        """Against eager."""
        return self.eager_ms / self.mtmc_ms if self.eager_ms and self.mtmc_ms else None

    @property
    def compile_speedup(self) -> float | None:
        """Against torch.compile's default mode."""
        return self.compile_ms / self.mtmc_ms if self.compile_ms and self.mtmc_ms else None


class BenchHeader(Record):
    """The first line of a result file: how it was made."""

    kind: Literal["header"] = "header"
    format: int = FORMAT
    suite: str
    command: str
    started: str
    """UTC, ISO 8601."""
    hardware: Hardware | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    """Python, torch, Triton, mtmc and its generators."""
    flags: dict[str, Any] = Field(default_factory=dict)
    """What changes a result: budget, policy, seeds, permissions. Not the number of workers or the
    selection."""

    @property
    def fingerprint(self) -> str:
        """Results may stand in one file exactly when this agrees: same suite, card, versions and flags."""
        card = self.hardware and {"name": self.hardware.name, "driver": self.hardware.driver}
        parts = [self.format, self.suite, card, self.versions, self.flags]
        return content_hash(json.dumps(parts, sort_keys=True))
