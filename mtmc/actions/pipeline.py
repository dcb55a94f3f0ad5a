"""Pipeline: how deep the inner loop prefetches; a persistent grid; operands through tensor descriptors.

::

    k3 tile matmul  grid m/128 n/128  loop k/64  8 warps
 ->
    k3 tile matmul  grid m/128 n/128  loop k/64  8 warps  4 stages
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions.action import Action, Value
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import form_of, require, reschedule, schedule_of
from mtmc.data.hardware import Hardware
from mtmc.ir.expr import Load
from mtmc.ir.forms import MatmulForm
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Program, Tile
from mtmc.ir.schedule import Schedule

KIND = "pipeline"
DEPTHS = (1, 2, 3, 4, 5)
_DEPTH = re.compile(rf"pipeline ({REGION}) with (\d+) stages?")
_GRID = re.compile(rf"make ({REGION}) persistent( with tensor descriptors)?")


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    for region, kernel in representatives(program):
        if not isinstance(kernel.impl, Tile) or not has_loop(kernel.impl.schedule):
            continue
        schedule = kernel.impl.schedule
        for depth in DEPTHS:
            if depth != schedule.stages:
                yield Action(KIND, (region,), (("stages", depth),))
        if schedule.form == "matmul" and not schedule.persistent:
            for descriptors in (False, True):
                params: tuple[tuple[str, Value], ...] = (("persistent", True), ("descriptors", descriptors))
                yield Action(KIND, (region,), params)


def has_loop(schedule: Schedule) -> bool:
    return schedule.form == "matmul" or schedule.loop


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    schedule = schedule_of(kernel)
    require(has_loop(schedule), f"{kernel.id} ({kernel.note}) has no inner loop to pipeline")
    if action.get("persistent", False):
        require(
            schedule.form == "matmul",
            f"{kernel.id} ({kernel.note}): only a matmul kernel has a persistent grid",
        )
    else:
        require(1 <= action.number("stages") <= 8, f"{action.number('stages')} stages: it takes 1 to 8")


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    schedule = schedule_of(kernel)
    if not action.get("persistent", False):
        return reschedule(program, kernel, replace(schedule, stages=action.number("stages")))
    descriptors = bool(action.get("descriptors", False))
    if descriptors:
        form = form_of(program, kernel)
        assert isinstance(form, MatmulForm)
        for contract in form.contracts:
            for term in contract.terms:
                for side in term:
                    _check_descriptor(program, side)
    return reschedule(program, kernel, replace(schedule, persistent=True, descriptors=descriptors))


def _check_descriptor(program: Program, side: object) -> None:
    """A descriptor reads a box of a strided tensor: plain axes, one unit stride, the others multiples of 16 bytes."""
    require(isinstance(side, Load), "an operand that is computed on the way in can't come through a descriptor")
    assert isinstance(side, Load)
    buffer = program.buffer(side.buffer)
    plain = all(isinstance(sub, Index) and (isinstance(sub.single, Axis) or sub == Index()) for sub in side.index)
    require(plain and not side.when, f"'{buffer.name}' is read through a view that a descriptor can't express")
    strides = [stride.constant for stride in buffer.strides]
    require(strides[-1] == 1, f"'{buffer.name}' has no unit stride in its last dimension")
    aligned = all(stride is not None and stride * buffer.dtype.bytes % 16 == 0 for stride in strides[:-1])
    require(aligned, f"the strides of '{buffer.name}' are not multiples of 16 bytes")


def describe(program: Program, action: Action) -> str:
    region = named(program, action.region[0])
    if action.get("persistent", False):
        tail = " with tensor descriptors" if action.get("descriptors", False) else ""
        return f"make {region} persistent{tail}"
    depth = action.number("stages")
    return f"pipeline {region} with {depth} stage{'' if depth == 1 else 's'}"


def parse(line: str) -> Action | None:
    if found := _DEPTH.fullmatch(line):
        return Action(KIND, (token(found[1]),), (("stages", int(found[2])),))
    if found := _GRID.fullmatch(line):
        return Action(KIND, (token(found[1]),), (("persistent", True), ("descriptors", found[2] is not None)))
    return None
