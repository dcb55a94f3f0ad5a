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
    return capture_exported(export_problem(problem, device))


def capture_module(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_batch: Dim | None = None) -> Program:
    """The Program of a module as it stands on example inputs. With ``dynamic_batch``, dimension 0 of the inputs is that
    dim, and extents and index maps are expressions over it."""
    return capture_exported(export_module(module, inputs, dynamic_batch), dynamic_batch)


def capture_exported(exported: Exported, dynamic_batch: Dim | None = None) -> Program:
    """The Program of a graph that torch.export made; its one dynamic dimension, if any, is the declared dim."""
    symbols = {
        size.node.expr
        for node in exported.program.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
        for size in node.meta["val"].shape
        if isinstance(size, torch.SymInt)
    }
    atoms = {atom for symbol in symbols for atom in symbol.free_symbols}
    if len(atoms) > 1:
        raise CaptureError("the program has more than one dynamic dimension; declare only the batch")
    return lower(exported, Sizes({atom: dynamic_batch or _declared(exported, atom) for atom in atoms}))


def _declared(exported: Exported, symbol: Any) -> Dim:
    """The dim of a saved program, with the limit that it was exported with."""
    bounds = exported.program.range_constraints.get(symbol)
    upper = bounds.upper if bounds is not None else None
    return Dim("batch", int(upper)) if upper is not None and upper.is_Integer else Dim("batch")
