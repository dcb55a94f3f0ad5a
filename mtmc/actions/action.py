"""One action: a frozen value that prints as the line a policy scores, and parses back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from mtmc.data.hardware import Hardware
from mtmc.ir.program import Program

if TYPE_CHECKING:
    from types import ModuleType

Value: TypeAlias = "int | str | bool | tuple[int, ...]"


@dataclass(frozen=True, order=True)
class Action:
    """``kind`` is one of the catalogue's; ``region`` names kernels (``k3``), classes of equal kernels (``k3*``)
    or ``all``; ``params`` are name and value, in the order of the kind's module."""

    kind: str
    region: tuple[str, ...] = ()
    params: tuple[tuple[str, Value], ...] = ()

    def get(self, name: str, default: Value = 0) -> Value:
        return dict(self.params).get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        value = self.get(name, default)
        return value if isinstance(value, int) else default

    def describe(self, program: Program) -> str:
        """The printed line, with operation and source lines as notes: ``fuse k3 (linear, line 15) and k4 (max, line
        20)``."""
        from mtmc.actions import (
            catalog,  # the catalogue imports every kind, and every kind imports this module
        )

        return catalog.module_of(self).describe(program, self)


class ActionType(Protocol):
    """What the module of a kind of action provides. The catalogue expands classes of kernels (``k3*``), so
    ``rewrite`` only ever sees kernel ids."""

    KIND: str

    def propose(self, program: Program, hardware: Hardware) -> Iterator[Action]:
        """Actions worth trying, in program order; some may turn out illegal."""
        ...

    def check(self, program: Program, action: Action) -> None:
        """Raises IllegalAction with the reason where the action can't apply, before any work."""
        ...

    def rewrite(self, program: Program, action: Action, hardware: Hardware) -> Program:
        """The Program after the action. Raises IRError with the reason where it does not apply."""
        ...

    def describe(self, program: Program, action: Action) -> str: ...

    def parse(self, line: str) -> Action | None:
        """The action of a line without notes, or None if the line is of another kind."""
        ...


Kind: TypeAlias = "ActionType | ModuleType"
