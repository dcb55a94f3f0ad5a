"""From raw findings to outcomes: pure functions of what children reported, in words that an engineer can act on."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mtmc.data.evaluation import ErrorStats, Outcome
from mtmc.errors import JudgeError
from mtmc.verify.compare import FACTOR
from mtmc.verify.worker import Fault

COMPILER_ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError",
                   "OutOfResources", "SyntaxError", "IndentationError", "TabError")  # fmt: skip
"""Exceptions of a first launch that mean: this kernel does not build."""
OUTSIDE = 1e30
"""Error of a result that is infinite or NaN where it must not be: finite, so that records stay plain JSON."""
STATE = "state:"
STATE_ROWS = 12
"""Records of state kept with an evaluation: a network can have hundreds."""


class Rejected(Exception):
    """Ends a trial. ``stage``: where, if not in the stage that was running."""

    def __init__(self, outcome: Outcome, message: str, stage: str = "") -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.stage = stage


@contextmanager
def judged_fault(stage: str, input_set: str = "", *, importing: bool = False) -> Iterator[None]:
    """Turn a fault of the candidate's child into a rejection; memory is both sides' and counts as the candidate's."""
    try:
        yield
    except Fault as fault:
        if fault.role == "reference" and fault.kind != "oom":
            raise JudgeError(f"The reference process failed in {fault.call}: {fault.sentence()}.") from fault
        where = f" on input set {input_set}" if input_set else ""
        match fault.kind:
            case "oom":
                rejected = Rejected(Outcome.OUT_OF_MEMORY, f"Out of memory{where}: {fault.sentence()}.")
            case "timeout":
                rejected = Rejected(Outcome.TIMEOUT, f"The {fault.call} was killed{where}: {fault.sentence()}.")
            case "error" if importing or fault.type_name in COMPILER_ERRORS:
                rejected = Rejected(Outcome.BUILD_ERROR, f"The source does not build: {fault.sentence()}.", "build")
            case "error":
                rejected = Rejected(Outcome.RUN_ERROR, f"The {fault.call} raised{where}: {fault.sentence()}.")
            case _:
                rejected = Rejected(Outcome.RUN_ERROR, f"The process was lost{where}: {fault.sentence()}.")
        rejected.stage = rejected.stage or stage
        raise rejected from None


class Errors:
    """The error rows of one trial, judged together when all sets have run."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, dict[str, Any]]] = []

    def add(self, input_set: str, output: str, row: dict[str, Any]) -> None:
        """``row``: a ``compare.Comparison`` as JSON."""
        self._rows.append((input_set, output, row))

    def stats(self) -> tuple[ErrorStats, ...]:
        """One record an output and set, and the worst few of the state, with what was allowed."""
        every = self._stats()
        state = sorted((s for s in every if s.output.startswith(STATE)), key=_excess, reverse=True)
        kept = {id(s) for s in state[:STATE_ROWS]}
        return tuple(s for s in every if not s.output.startswith(STATE) or id(s) in kept)

    def _stats(self) -> list[ErrorStats]:
        # Sets that differ only in their seed come from one distribution, so the reference's error there is the largest
        # over them: a scalar result can be right by luck once, and must not make its own luck the limit.
        usual: dict[str, tuple[float, float]] = {}
        for input_set, output, row in self._rows:
            if input_set.startswith("seed"):
                norm, worst = usual.get(output, (0.0, 0.0))
                own = row["reference"]
                usual[output] = max(norm, own["norm"]), max(worst, own["worst"])
        return [self._one(s, o, r, usual.get(o) if s.startswith("seed") else None) for s, o, r in self._rows]

    def rejection(self) -> Rejected | None:
        """The first row outside the contract, as a rejection; own inputs before made-up ones."""
        for stats, (input_set, output, row) in zip(self._stats(), self._rows, strict=True):
            if not stats.ok:
                outcome = Outcome.WRONG_STATE if output.startswith(STATE) else Outcome.WRONG_RESULT
                return Rejected(outcome, _explained(stats, row, input_set, output), "compare")
        return None

    @staticmethod
    def _one(input_set: str, output: str, row: dict[str, Any], usual: tuple[float, float] | None) -> ErrorStats:
        mine, own = row["candidate"], row["reference"]
        norm, worst = usual or (own["norm"], own["worst"])
        lost = row["misplaced"] > 0
        return ErrorStats(
            input_set=input_set,
            output=output,
            norm=OUTSIDE if lost else mine["norm"],
            worst=OUTSIDE if lost else mine["worst"],
            reference_norm=norm,
            reference_worst=worst,
            allowed_norm=max(FACTOR * norm, row["ulp_norm"]),
            allowed_worst=max(FACTOR * worst, row["ulp_worst"]),
        )


def _excess(stats: ErrorStats) -> float:
    """How far outside what is allowed; below 1 is inside."""
    tiny = 1e-300
    return max(stats.norm / (stats.allowed_norm + tiny), stats.worst / (stats.allowed_worst + tiny))


def _explained(stats: ErrorStats, row: dict[str, Any], input_set: str, output: str) -> str:
    if row["misplaced"]:
        return (
            f"{output} on input set {input_set}: {row['misplaced']} elements are infinite or NaN where the "
            "reference is not, or the other way round."
        )
    if stats.norm > stats.allowed_norm:
        what = (
            f"error {stats.norm:.3g} as a norm, {stats.allowed_norm:.3g} allowed, reference {stats.reference_norm:.3g}"
        )
    else:
        what = (
            f"worst error {stats.worst:.3g}, {stats.allowed_worst:.3g} allowed, reference {stats.reference_worst:.3g}"
        )
    at = f"at {row['where']}: got {row['got']:.7g}, expected {row['wanted']:.7g}" if row["where"] else (
        f"got {row['got']:.7g}, expected {row['wanted']:.7g}"
    )  # fmt: skip
    lower = stats.reference_norm < 2e-5 and 2e-5 < stats.norm < 5e-3
    hint = " This looks like operands rounded to fp16, bf16 or TF32." if lower else ""
    return f"{output} on input set {input_set}: {what}; {at}.{hint}"


def state_difference(wanted: dict[str, Any], given: dict[str, Any]) -> str:
    """The first way in which two state_dicts differ in name, shape or dtype; empty: none."""
    if missing := sorted(set(wanted) - set(given)):
        return f"{', '.join(missing[:4])} is missing"
    if extra := sorted(set(given) - set(wanted)):
        return f"{', '.join(extra[:4])} is not in the reference"
    for name, meta in wanted.items():
        for what in ("shape", "dtype"):
            if meta[what] != given[name][what]:
                return f"{name} has {what} {given[name][what]}, the reference {meta[what]}"
    return ""


def median_by_key(runs: Sequence[Sequence[Sequence[Any]]]) -> dict[str, float]:
    """Median over runs of the sum by key, keys in order of first appearance."""
    sums: dict[str, list[float]] = {}
    for run in runs:
        one: dict[str, float] = {}
        for key, ms in run:
            one[key] = one.get(key, 0.0) + ms
        for key, total in one.items():
            sums.setdefault(key, []).append(total)
    return {key: statistics.median(values) for key, values in sums.items()}
