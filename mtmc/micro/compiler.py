"""The compiler coder: every action by its own rewrite rule. Deterministic, no network."""

from __future__ import annotations

from collections.abc import Sequence

from mtmc.actions import catalog
from mtmc.actions.action import Action
from mtmc.data.hardware import H200, Hardware
from mtmc.ir.program import Program
from mtmc.micro.coder import Feedback


class CompilerCoder:
    """Needs no feedback: the same action on the same Program is the same rewrite."""

    name = "compiler/1"
    tries = 1

    def __init__(self, hardware: Hardware = H200) -> None:
        """``hardware`` chooses default schedules, never what is legal."""
        self.hardware = hardware

    def rewrite(self, program: Program, action: Action, feedback: Sequence[Feedback] = ()) -> Program:
        return catalog.apply(program, action, self.hardware)
