"""Generate: every library kernel of some form becomes generated code with its default schedule.

::

    k0 library  ...            k0 tile pointwise  ...
    k1 library  ...      ->    k1 tile row        ...
    k2 library  (opaque)       k2 library  (opaque)

Reductions whose grid would leave most of the card idle are split first: no kernel is made slow knowingly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions import split
from mtmc.actions.action import Action
from mtmc.actions.rewriting import form_of, require, scheduled
from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import dtype_of
from mtmc.ir.forms import MatmulForm
from mtmc.ir.forms.form import extent, typical
from mtmc.ir.program import Kernel, Library, Program, Stages
from mtmc.ir.types import DType

KIND = "generate"
_LINE = "generate all with default schedules"
_ACTION = Action(KIND, ("all",))


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    if any(_open(kernel) for kernel in program.kernels):
        yield _ACTION


def _open(kernel: Kernel) -> bool:
    return isinstance(kernel.impl, Library) and isinstance(kernel.spec, Stages)


def check(program: Program, action: Action) -> None:
    require(any(_open(kernel) for kernel in program.kernels), "no library kernel is left that could be generated")


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    chosen: dict[str, Kernel] = {}
    splits: list[Action] = []
    for kernel in program.kernels:
        if not _open(kernel) or _slow(program, kernel):
            continue
        try:
            chosen[kernel.id] = scheduled(program, kernel, hardware)
        except IRError:
            continue  # no form fits: PyTorch keeps running it
        parts = split.advised(program, kernel, hardware)
        if parts is not None:
            splits.append(split.action(kernel.id, parts))
    require(bool(chosen), "none of the library kernels is of a form that can be generated")
    program = replace(program, kernels=tuple(chosen.get(kernel.id, kernel) for kernel in program.kernels))
    for step in splits:
        try:
            program = split.rewrite(program, step, hardware)
        except IRError:
            continue  # can't be split: one program a row is still right
    return program


SHALLOW = 32
"""Depth of a float32 product up to which memory binds it, so that the slower arithmetic of plain tiles is free."""


def _slow(program: Program, kernel: Kernel) -> bool:
    """Matrix products that the library runs faster than a plain tile: cuBLAS on float32 beats three TF32 products,
    which is why those operands are encoded first; float64 has no tensor-core path here."""
    try:
        form = form_of(program, kernel)
    except IRError:
        return False
    if not isinstance(form, MatmulForm) or form.half or kernel.rounding == "tf32":
        return False
    kinds = {dtype_of(node, program.dtype) for node in form.contracts}
    return DType.F64 in kinds or typical(extent(form.k)) > SHALLOW


def describe(program: Program, action: Action) -> str:
    return _LINE


def parse(line: str) -> Action | None:
    return _ACTION if line == _LINE else None
