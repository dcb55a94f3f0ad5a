"""Picks the renderer of a kernel by its form."""

from __future__ import annotations

from mtmc.codegen.triton import matmul, pointwise, row, scan
from mtmc.codegen.triton.emit import FileParts
from mtmc.codegen.triton.kernel import RenderedKernel
from mtmc.errors import CodegenError
from mtmc.ir.forms import FORMS, MatmulForm, PointwiseForm, RowForm, ScanForm
from mtmc.ir.program import Kernel, Program, Tile


def render_kernel(program: Program, kernel: Kernel, parts: FileParts) -> RenderedKernel:
    """The Triton function of one tiled kernel. IRError where its stages do not have the form that its schedule
    names; CodegenError where Triton cannot express something in it."""
    if not isinstance(kernel.impl, Tile):
        raise CodegenError(f"{kernel.id} ({kernel.note}) has no tile implementation")
    wanted = kernel.impl.schedule.form
    for matcher in FORMS:
        if matcher.name != wanted:
            continue
        match matcher.match(program, kernel):
            case PointwiseForm() as form:
                return pointwise.render(program, kernel, form, parts)
            case RowForm() as form:
                return row.render(program, kernel, form, parts)
            case ScanForm() as form:
                return scan.render(program, kernel, form, parts)
            case MatmulForm() as form:
                return matmul.render(program, kernel, form, parts)
    raise CodegenError(f"{kernel.id} ({kernel.note}): no renderer for the form '{wanted}'")
