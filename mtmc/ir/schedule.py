"""How a kernel runs, and never what it computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The choices for one kernel of a given form (see :mod:`mtmc.ir.forms`); unused fields keep their default.

    ``tile``: pointwise ``(block,)``; row and scan ``(rows, columns)``; matmul ``(m, n, k)``, powers of two.
    """

    form: str
    tile: tuple[int, ...]
    loop: bool = False
    """Row and scan: the inner axis runs in a loop of ``columns`` wide steps (several passes); else it is held
    whole in registers."""
    warps: int = 4
    stages: int = 1
    """Depth of the software pipeline of the inner loop."""
    group: int = 1
    """Matmul: grid rows that run together, for L2 reuse."""
    order: int = 0
    """Pointwise and row: 0 keeps the grid order, 1 walks it backwards (reuse of what a producer left in L2)."""
    persistent: bool = False
    """One program for each multiprocessor, which walks over the tiles."""
    descriptors: bool = False
    """Matmul operands come through tensor descriptors (TMA) instead of pointers."""
    dot: str = "tf32x3"
    """Matmul on float32 operands: ``ieee`` (full range, slow) or ``tf32x3`` (as accurate, on tensor cores)."""
    separate: bool = True
    """Matmul: add each K block's product in float32 outside the tensor core, whose accumulator truncates."""
