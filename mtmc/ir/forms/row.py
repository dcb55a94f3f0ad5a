"""Row: some axes are kept, the others are reduced; whatever else the kernel does has the shape of a row or of its
reduced values. Softmax, norms, losses, plain reductions, matrix-vector products."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Contract, Expr, Load, Op, Reduce, Scan, Stage, free_axes, loads, rebuild, walk
from mtmc.ir.forms.form import check_locals, extent, nodes, pow2_ceil, stages_of, stride_of, typical
from mtmc.ir.index import Axis
from mtmc.ir.program import Kernel, Program
from mtmc.ir.schedule import Schedule

REGISTER_LIMIT = 16384
"""Largest row (elements) that is held whole by default: 32 to 64 registers a thread at 8 to 16 warps."""


@dataclass(frozen=True)
class RowForm:
    kept: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    """The kernel's stages with contractions written as plain sums."""
    levels: int
    """Passes over the row that the reductions need one after the other."""
    column_major: bool
    """True where neighbours in memory lie along the kept axes."""
    passes: int = 1
    """Times that a row is walked when it does not fit: one for each level, and one to store what has its shape."""
    name: str = "row"

    @staticmethod
    def match(program: Program, kernel: Kernel) -> RowForm:
        spec = stages_of(kernel)
        if nodes(spec.stages, Scan):
            raise IRError(f"{kernel.id}: a scan is not a reduction")
        stages = tuple(_without_contractions(kernel, stage) for stage in spec.stages)
        reductions = [node for node in nodes(stages, Reduce) if isinstance(node, Reduce)]
        if not reductions:
            raise IRError(f"{kernel.id}: nothing is reduced")
        inner = reductions[0].axes
        for node in reductions:
            if set(node.axes) != set(inner):
                raise IRError(f"{kernel.id}: its reductions run over different axes")
            if any(isinstance(below, Reduce) for arg in node.args for below in walk(arg)):
                raise IRError(f"{kernel.id}: a reduction inside a reduction needs a stage of its own")
        kept = _kept_axes(kernel, stages, inner)
        levels, _ = reduction_levels(stages, spec.locals)
        check_locals(kernel, program)
        depth = max(levels.values())
        stores_rows = any(set(s.axes) & set(inner) and s.target not in spec.locals for s in stages)
        column_major = _column_major(program, stages, kept, inner)
        return RowForm(kept, inner, stages, depth, column_major, depth + stores_rows)

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        rows, columns = typical(extent(self.kept)), typical(extent(self.inner))
        if self.column_major:
            if columns <= 256:
                wide = max(1, min(64, 4096 // pow2_ceil(columns), pow2_ceil(rows)))
                return Schedule(self.name, (wide, pow2_ceil(columns)), warps=8 if wide * columns >= 4096 else 4)
            return Schedule(self.name, (min(128, pow2_ceil(rows)), 32), loop=True, warps=8)
        if columns <= REGISTER_LIMIT:
            block = pow2_ceil(columns)
            together = max(1, min(2048 // block, pow2_ceil(rows)))
            warps = max(1, min(16, block * together // 512))
            return Schedule(self.name, (together, block), warps=warps)
        if self.passes == 1:
            return Schedule(self.name, (1, 2048), loop=True, warps=8)
        if columns <= 131072:
            return Schedule(self.name, (1, 8192), loop=True, warps=16, order=1)
        return Schedule(self.name, (1, 16384), loop=True, warps=32, order=1)

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        rows, columns = typical(extent(self.kept)), typical(extent(self.inner))
        found: dict[Schedule, None] = {}
        whole = pow2_ceil(columns)
        if self.column_major:
            shapes = ((32, 32, 4), (64, 16, 4), (128, 32, 8), (128, 64, 8), (64, 64, 8), (256, 32, 16), (64, 128, 16))
            for wide, deep, warps in shapes:
                found[Schedule(self.name, (min(wide, pow2_ceil(rows)), deep), loop=True, warps=warps)] = None
            if whole <= 512:
                for wide in (16, 32, 64, 128):
                    if wide * whole <= 16384:
                        found[Schedule(self.name, (wide, whole), warps=4 if wide * whole < 4096 else 8)] = None
            return tuple(found)
        if whole <= 32768:
            for warps in (4, 8, 16, 32):
                if whole // (32 * warps) in range(4, 65):
                    found[Schedule(self.name, (1, whole), warps=warps)] = None
            for together in (2, 4, 8, 16):
                if together * whole <= 8192 and together <= rows:
                    warps = max(1, min(8, together * whole // 512))
                    found[Schedule(self.name, (together, whole), warps=warps)] = None
        if columns > 1024:
            order = int(self.passes > 1)
            for block, warps in ((1024, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16), (8192, 32), (16384, 32)):
                if block < whole:
                    found[Schedule(self.name, (1, block), loop=True, warps=warps, order=order)] = None
        return tuple(found)


def _without_contractions(kernel: Kernel, stage: Stage) -> Stage:
    def convert(expr: Expr) -> Expr:
        expr = rebuild(expr, convert)
        if not isinstance(expr, Contract):
            return expr
        for a, b in expr.terms:
            if free_axes(a) - set(expr.axes) and free_axes(b) - set(expr.axes) - free_axes(a):
                raise IRError(f"{kernel.id}: both operands have axes of their own, so this is a matrix product")
        products = [Op("mul", term) for term in expr.terms]
        total: Expr = products[0]
        for product in products[1:]:
            total = Op("add", (total, product))
        return Reduce("sum", expr.axes, (total,))

    body = convert(stage.body)
    return (
        stage
        if body == stage.body
        else Stage(stage.axes, stage.target, stage.store, body, stage.accumulate, stage.when)
    )


def _kept_axes(kernel: Kernel, stages: tuple[Stage, ...], inner: tuple[Axis, ...]) -> tuple[Axis, ...]:
    first = next(s for s in stages if any(isinstance(node, Reduce) for node in walk(s.body)))
    kept = tuple(axis for axis in first.axes if axis not in inner)
    for stage in stages:
        axes = set(stage.axes)
        if axes not in (set(kept), set(kept) | set(inner)):
            raise IRError(
                f"{kernel.id}: the stage of '{stage.target}' has neither the row's shape nor its reduced shape"
            )
        if axes & set(inner) and any(isinstance(node, Reduce) for node in walk(stage.body)):
            raise IRError(f"{kernel.id}: the stage of '{stage.target}' reduces and keeps the same axes")
    return kept


def reduction_levels(stages: tuple[Stage, ...], local: tuple[str, ...]) -> tuple[dict[Reduce, int], dict[str, int]]:
    """For every reduction, and every buffer, how many reductions must be finished before it (1 is the first)."""
    levels: dict[Reduce, int] = {}
    buffers: dict[str, int] = {}

    def depth(expr: Expr) -> int:
        level = 0
        for node in walk(expr):
            if isinstance(node, Load):
                level = max(level, buffers.get(node.buffer, 0))
            if isinstance(node, Reduce):
                below = 1 + max((buffers.get(load.buffer, 0) for arg in node.args for load in loads(arg)), default=0)
                levels[node] = below
                level = max(level, below)
        return level

    for stage in stages:
        buffers[stage.target] = depth(stage.body)
    return levels, buffers


def _column_major(program: Program, stages: tuple[Stage, ...], kept: tuple[Axis, ...], inner: tuple[Axis, ...]) -> bool:
    """Votes by the loads of full rows: does the fastest axis in memory belong to the kept axes?"""
    votes = 0
    for stage in stages:
        for load in loads(stage.body):
            near_inner = any(stride_of(program, load, axis) == 1 for axis in inner)
            near_kept = any(stride_of(program, load, axis) == 1 for axis in kept)
            reads_row = any(stride_of(program, load, axis) not in (0,) for axis in inner)
            if reads_row:
                votes += near_kept - near_inner
    return votes > 0
