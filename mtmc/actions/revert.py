"""Revert: let PyTorch run a kernel again.

::

    k3 tile matmul  t3[m, n] = sum_k x[m, k] * fc.weight[n, k]
 ->
    k3 library  t3[m, n] = aten.linear(x, fc.weight)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions.action import Action
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import require
from mtmc.data.hardware import Hardware
from mtmc.ir.program import Library, Program

KIND = "revert"
_LINE = re.compile(rf"revert ({REGION}) to the library")


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    for region, kernel in representatives(program):
        if kernel.calls and not isinstance(kernel.impl, Library):
            yield Action(KIND, (region,))


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    require(not isinstance(kernel.impl, Library), f"{kernel.id} ({kernel.note}) already runs in the library")
    require(
        bool(kernel.calls) and kernel.guard is None,
        f"{kernel.id} ({kernel.note}) was made by an action: no library call computes it",
    )


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    return program.replace_kernel(kernel.id, replace(kernel, impl=Library()))


def describe(program: Program, action: Action) -> str:
    return f"revert {named(program, action.region[0])} to the library"


def parse(line: str) -> Action | None:
    found = _LINE.fullmatch(line)
    return Action(KIND, (token(found[1]),)) if found else None
