"""How forward takes its arguments and packs its results, and constants as Python text."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from mtmc.errors import CaptureError


def check_inputs(program: ExportedProgram) -> None:
    """Every argument of forward is a tensor or a plain value, given by position."""
    spec = program.call_spec.in_spec
    if spec is None:
        return
    positional, named = spec.children()
    if named.num_leaves or any(not child.is_leaf() for child in positional.children()):
        raise CaptureError("forward takes keyword arguments or containers; give tensors and plain values by position")


def output_tree(program: ExportedProgram) -> str:
    """How forward packs its outputs."""
    spec = program.call_spec.out_spec
    if spec is None or spec.is_leaf():
        return "tensor"
    if issubclass(spec.type, tuple | list) and all(child.is_leaf() for child in spec.children()):
        return "tuple" if issubclass(spec.type, tuple) else "list"
    raise CaptureError("forward returns nested containers or a dict; return a tensor, or a tuple or list of tensors")


def literal(value: Any) -> str:
    """Python text of nested lists of numbers, infinities included."""
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    return repr(value)
