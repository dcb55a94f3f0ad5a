"""Reorder: the order in which the programs of the grid run, for what the second-level cache still holds.

::

    k3 tile matmul  grid m/128 n/128
 ->
    k3 tile matmul  grid m/128 n/128  groups of 8
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions.action import Action
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import require, reschedule, schedule_of
from mtmc.data.hardware import Hardware
from mtmc.ir.program import Program, Tile

KIND = "reorder"
GROUPS = (1, 4, 8, 16)
_GROUPS = re.compile(rf"reorder the grid of ({REGION}) in groups of (\d+)")
_WALK = re.compile(rf"reorder the grid of ({REGION}) (backwards|forwards)")


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    for region, kernel in representatives(program):
        if not isinstance(kernel.impl, Tile):
            continue
        schedule = kernel.impl.schedule
        if schedule.form == "matmul":
            for group in GROUPS:
                if group != schedule.group:
                    yield Action(KIND, (region,), (("group", group),))
        elif schedule.form in ("pointwise", "row"):
            yield Action(KIND, (region,), (("order", 1 - schedule.order),))


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    schedule = schedule_of(kernel)
    if "group" in dict(action.params):
        require(schedule.form == "matmul", f"{kernel.id} ({kernel.note}) has a grid of one dimension: no groups")
        require(1 <= action.number("group") <= 64, f"groups of {action.number('group')}: it takes 1 to 64")
    else:
        require(
            schedule.form in ("pointwise", "row"),
            f"{kernel.id} ({kernel.note}): only pointwise and row kernels walk their grid backwards",
        )


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    schedule = schedule_of(kernel)
    if "group" in dict(action.params):
        return reschedule(program, kernel, replace(schedule, group=action.number("group")))
    return reschedule(program, kernel, replace(schedule, order=action.number("order")))


def describe(program: Program, action: Action) -> str:
    text = f"reorder the grid of {named(program, action.region[0])}"
    if "group" in dict(action.params):
        return f"{text} in groups of {action.number('group')}"
    return f"{text} {'backwards' if action.number('order') else 'forwards'}"


def parse(line: str) -> Action | None:
    if found := _GROUPS.fullmatch(line):
        return Action(KIND, (token(found[1]),), (("group", int(found[2])),))
    if found := _WALK.fullmatch(line):
        return Action(KIND, (token(found[1]),), (("order", int(found[2] == "backwards")),))
    return None
