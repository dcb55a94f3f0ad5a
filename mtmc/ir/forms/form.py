"""What every form provides: a match, a default schedule and the schedules worth trying."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Contract, Expr, Load, Reduce, Scan, Stage, loads, walk
from mtmc.ir.index import Axis, Dim, Index
from mtmc.ir.program import Kernel, Program, Stages
from mtmc.ir.schedule import Schedule


class Form(Protocol):
    """A loop structure that a target can express, matched against one kernel."""

    @property
    def name(self) -> str:
        """What a schedule of this form is called."""
        ...

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        """A good first schedule."""
        ...

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        """Schedules worth trying, a coarse grid in a fixed order."""
        ...


def stages_of(kernel: Kernel) -> Stages:
    if not isinstance(kernel.spec, Stages):
        raise IRError(f"{kernel.id} ({kernel.note}) is opaque: only PyTorch knows what it computes")
    return kernel.spec


def extent(axes: Iterable[Axis]) -> Index:
    """Number of points of some axes together."""
    total = Index.of(1)
    for axis in axes:
        total = total * axis.extent
    return total


def typical(value: Index) -> int:
    """An extent as a number for choosing schedules; a dynamic dim counts as its declared limit."""
    return value.evaluate({dim.name: dim.limit for dim in value.dims})


def nodes(stages: Iterable[Stage], *kinds: type) -> list[Expr]:
    """Distinct nodes of some kinds in order of appearance, outermost first."""
    found: dict[Expr, None] = {}
    for stage in stages:
        for node in walk(stage.body):
            if isinstance(node, kinds):
                found[node] = None
    return list(found)


def check_locals(kernel: Kernel, program: Program) -> None:
    """A local buffer holds one value for each point: it must be read exactly where it was written."""
    spec = stages_of(kernel)
    written: dict[str, tuple[Index, ...]] = {}
    for stage in spec.stages:
        for load in loads(stage.body):
            if load.buffer in spec.locals and load.buffer not in written:
                raise IRError(f"{kernel.id}: '{load.buffer}' is read before it is computed")
            if load.buffer in written and (load.index != written[load.buffer] or load.when):
                raise IRError(f"{kernel.id}: '{load.buffer}' is needed at {_show(load)}, not where it is computed")
        written[stage.target] = stage.store


def _show(load: Load) -> str:
    return ", ".join(str(sub) for sub in load.index)


def is_plain(stage: Stage) -> bool:
    """True where a stage is elementwise only."""
    return not any(isinstance(node, Reduce | Scan | Contract) for node in walk(stage.body))


def pow2_ceil(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def stride_of(program: Program, load: Load, axis: Axis) -> int | None:
    """Elements between neighbours along an axis in a load; None where it is not a constant."""
    if not all(isinstance(sub, Index) for sub in load.index):
        return None
    offset = program.buffer(load.buffer).offset(tuple(sub for sub in load.index if isinstance(sub, Index)))
    for mono, coef in offset.terms:
        if mono == (axis,):
            return coef
        if axis in {a for atom in mono for a in (Index(((((atom,)), 1),)).axes)}:
            return None
    return 0


__all__ = [
    "Dim", "Form", "check_locals", "extent", "is_plain", "nodes", "pow2_ceil", "stages_of", "stride_of", "typical",
]  # fmt: skip
