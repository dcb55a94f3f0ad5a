"""What the library was measured to take for a row of calls: whether a generated kernel was worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mtmc.ir.program import Call, Library, Program

Calls = tuple[Call, ...]


class LibraryTimes:
    """Fastest measured milliseconds of library kernels in one search, by the calls that they make."""

    def __init__(self) -> None:
        self._ms: dict[Calls, float] = {}

    def learn(self, program: Program, times_ms: Mapping[str, float]) -> None:
        """Take over measured kernel times; those of generated kernels say nothing here."""
        for kernel in program.kernels:
            if isinstance(kernel.impl, Library) and kernel.id in times_ms:
                self._ms[kernel.calls] = min(times_ms[kernel.id], self._ms.get(kernel.calls, math.inf))

    def of(self, program: Program) -> dict[str, float]:
        """Kernel id to the library's time for the same calls, for generated kernels that it could run too."""
        found: dict[str, float] = {}
        for kernel in program.kernels:
            ms = None if isinstance(kernel.impl, Library) else covered(kernel.calls, self._ms)
            if ms is not None:
                found[kernel.id] = ms
        return found


def covered(calls: Calls, times: Mapping[Calls, float]) -> float | None:
    """The time of a row of calls put together from rows whose times are known; None where some call is not."""
    total, at = 0.0, 0
    while at < len(calls):
        part = next((row for row in times if row and row == calls[at : at + len(row)]), None)
        if part is None:
            return None
        total += times[part]
        at += len(part)
    return total if calls else None
