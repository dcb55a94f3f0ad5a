"""A trace: the actions of an episode as text, one a line, which replays on a fresh Program."""

from __future__ import annotations

from collections.abc import Iterable

from mtmc.actions.action import Action
from mtmc.actions.catalog import apply, parse
from mtmc.data.hardware import H200, Hardware
from mtmc.errors import IllegalAction, IRError
from mtmc.ir.program import Program


def write(program: Program, actions: Iterable[Action], hardware: Hardware = H200) -> str:
    """The printed lines of some actions, each described on the Program that it applies to."""
    lines: list[str] = []
    for action in actions:
        lines.append(action.describe(program))
        program = apply(program, action, hardware)
    return "".join(f"{line}\n" for line in lines)


def read(text: str) -> tuple[Action, ...]:
    """The actions of a trace; blank lines and lines that start with ``#`` are left out."""
    stripped = (line.strip() for line in text.splitlines())
    return tuple(parse(line) for line in stripped if line and not line.startswith("#"))


def replay(program: Program, text: str, hardware: Hardware = H200) -> Program:
    """The Program after every action of a trace. Raises IllegalAction naming the line that does not apply."""
    for number, action in enumerate(read(text), start=1):
        try:
            program = apply(program, action, hardware)
        except IRError as error:
            raise IllegalAction(f"action {number} of the trace does not apply: {error.message}") from error
    return program
