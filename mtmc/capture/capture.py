"""PyTorch to Program."""

from __future__ import annotations

from typing import Any

import torch

from mtmc.capture.export import Exported, export_module, export_problem
from mtmc.capture.lower import lower
from mtmc.capture.value import Sizes
from mtmc.errors import CaptureError
from mtmc.ir.index import Dim
from mtmc.ir.program import Program
from mtmc.problem.problem import Problem


def capture(problem: Problem, device: str = "cpu") -> Program:
    """The Program of a problem's reference, every kernel a Library kernel. Nothing large is allocated.

    Args:
        device: what the traced tensors claim to be on; decides the strides that attention and recurrent layers return.

    Raises:
        CaptureError: torch.export refuses the program, or it does what the IR has no place for; names the user's line.
        ProblemError: the constructor or ``get_inputs`` raises by itself.
    """
    return lower(export_problem(problem, device))


def capture_module(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_batch: Dim | None = None) -> Program:
    """The Program of a module as it stands on example inputs. With ``dynamic_batch``, dimension 0 of the inputs is that
    dim, and extents and index maps are expressions over it."""
    return capture_exported(export_module(module, inputs, dynamic_batch), dynamic_batch)


def capture_exported(exported: Exported, dynamic_batch: Dim | None = None) -> Program:
    """The Program of a graph that torch.export made."""
    symbols = {
        size.node.expr
        for node in exported.program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    }
    atoms = {atom for symbol in symbols for atom in symbol.free_symbols}
    if len(atoms) > 1 or atoms and dynamic_batch is None:
        raise CaptureError("the program has more dynamic dimensions than the one that was declared")
    sizes = Sizes({atom: dynamic_batch for atom in atoms if dynamic_batch is not None})
    return lower(exported, sizes)
