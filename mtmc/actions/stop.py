"""Stop: end the episode; the Program stays as it is."""

from __future__ import annotations

from collections.abc import Iterator

from mtmc.actions.action import Action
from mtmc.data.hardware import Hardware
from mtmc.ir.program import Program

KIND = "stop"
STOP = Action(KIND)


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    yield STOP


def check(program: Program, action: Action) -> None:
    """Always legal."""


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    return program


def describe(program: Program, action: Action) -> str:
    return KIND


def parse(line: str) -> Action | None:
    return STOP if line == KIND else None
