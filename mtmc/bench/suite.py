"""What a benchmark is to the runner: a named list of problem files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from mtmc.data.record import Record
from mtmc.errors import UsageError


class BenchProblem(Record):
    """One problem file. Picklable and small: workers get it, never the program."""

    suite: str
    """Such as ``kernelbench/level1``."""
    number: int
    name: str
    """Unique in its suite, such as the file's stem."""
    path: str


class Suite(Protocol):
    """A benchmark that can list its problems."""

    @property
    def name(self) -> str:
        """Such as ``kernelbench/level1``; part of a result file's fingerprint."""
        ...

    def problems(self) -> Sequence[BenchProblem]:
        """All problems, by number.

        Raises:
            BenchError: the user's checkout is missing or not what it should be.
        """
        ...


def select(problems: Sequence[BenchProblem], selection: str | None) -> list[BenchProblem]:
    """The problems whose numbers a text such as ``1-20,33`` names; all of them for None or ``all``.

    Raises:
        UsageError: the text does not parse, or names a number that does not exist.
    """
    if selection is None or selection.strip().lower() in ("", "all"):
        return list(problems)
    wanted: set[int] = set()
    for part in selection.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"The problem selection {selection!r} does not read at {part!r}; write it like 1-20,33.")
        wanted.update(range(first, last + 1))
    if missing := wanted - {p.number for p in problems}:
        raise UsageError(
            f"There is no problem {min(missing)} (of {len(missing)} missing); the numbers go from "
            f"{min(p.number for p in problems)} to {max(p.number for p in problems)}."
        )
    return [p for p in problems if p.number in wanted]
