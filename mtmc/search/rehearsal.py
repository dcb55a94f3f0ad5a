"""A smaller copy of a problem that takes every step beside the real one, so that a machine without a GPU can run it.

The real Program decides: its sizes choose the actions, its roofline is the estimate, its file is written and built.
Only what the interpreter runs is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mtmc.actions import catalog
from mtmc.actions.action import Action
from mtmc.actions.regions import members
from mtmc.capture import capture
from mtmc.data.hardware import Hardware
from mtmc.errors import IllegalAction, MtmcError
from mtmc.ir.program import Program, Source
from mtmc.problem.problem import Problem


@dataclass(frozen=True)
class Rehearsal:
    """``problem`` is the small one, as captured in ``program``."""

    problem: Problem
    program: Program

    @staticmethod
    def of(problem: Problem, program: Program, max_elements: int) -> Rehearsal | None:
        """None where the problem is small enough as it is, or can't be made smaller with the same kernels."""
        small = problem.scaled(max_elements)
        if small.text == problem.text:
            return None
        try:
            captured = capture(small)
        except MtmcError:
            return None
        same = [(k.id, k.op) for k in captured.kernels] == [(k.id, k.op) for k in program.kernels]
        return Rehearsal(small, captured) if same else None


def follow(small: Program, action: Action, program: Program, hardware: Hardware) -> Program:
    """``small`` after the step that led to ``program``: the same action, or the same source text.

    Raises:
        IllegalAction: the step does not apply at these sizes.
    """
    for kernel in (kernel for region in action.region for kernel in members(small, region)):
        written = next((k.impl for k in program.kernels if k.id == kernel.id), None)
        if isinstance(written, Source):
            return small.replace_kernel(kernel.id, replace(kernel, impl=written))
    try:
        return catalog.apply(small, action, hardware)
    except IllegalAction as error:
        raise IllegalAction(f"at the small sizes that the interpreter runs: {error.message}") from error
