"""Launch: capture the launch plan in one CUDA graph, or launch kernel by kernel again.

::

    launch eager   k0; k1; k2
 ->
    launch graph   (k0; k1; k2) replayed as one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions.action import Action
from mtmc.actions.rewriting import require
from mtmc.data.hardware import Hardware
from mtmc.ir.program import Opaque, Program

KIND = "launch"
_LINES = {"graph": "capture the launches in a CUDA graph", "eager": "launch kernel by kernel"}


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    for plan in _LINES:
        if plan != program.launch:
            yield Action(KIND, ("all",), (("plan", plan),))


def check(program: Program, action: Action) -> None:
    plan = action.get("plan", "graph")
    require(plan in _LINES, f"'{plan}' is no launch plan; there are {', '.join(_LINES)}")
    require(plan != program.launch, f"the launch plan is {plan} already")
    if plan == "graph":
        require(
            not program.dims,
            f"a graph has fixed shapes, and {', '.join(d.name for d in program.dims)} may change",
        )
        for kernel in program.kernels:
            random = isinstance(kernel.spec, Opaque) and "random" in kernel.spec.effects
            require(
                not random,
                f"{kernel.id} ({kernel.note}) draws random numbers: a graph would replay the same ones",
            )


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    return replace(program, launch=str(action.get("plan", "graph")))


def describe(program: Program, action: Action) -> str:
    return _LINES[str(action.get("plan", "graph"))]


def parse(line: str) -> Action | None:
    plan = next((plan for plan, text in _LINES.items() if text == line), None)
    return Action(KIND, ("all",), (("plan", plan),)) if plan else None
