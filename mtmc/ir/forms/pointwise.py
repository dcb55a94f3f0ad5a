"""Pointwise: every point of one domain on its own. A small constant window may be reduced inside a point (pooling)."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Contract, Expr, Reduce, Scan, loads
from mtmc.ir.forms.form import check_locals, extent, nodes, stages_of, typical
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Kernel, Program
from mtmc.ir.schedule import Schedule

WINDOW_LIMIT = 128
"""Largest window that is unrolled inside a point."""


@dataclass(frozen=True)
class PointwiseForm:
    domain: tuple[Axis, ...]
    """Axes of all stages, outermost first; the renderer flattens them into one."""
    window: int
    """Points of the largest window reduced inside a point; 1 where there is none."""
    name: str = "pointwise"

    @staticmethod
    def match(program: Program, kernel: Kernel) -> PointwiseForm:
        spec = stages_of(kernel)
        domain = spec.stages[-1].axes
        for stage in spec.stages:
            if set(stage.axes) != set(domain):
                raise IRError(f"{kernel.id}: its stages run over different points")
        if nodes(spec.stages, Scan, Contract):
            raise IRError(f"{kernel.id}: a scan or a contraction is not pointwise")
        window = 1
        for node in nodes(spec.stages, Reduce):
            assert isinstance(node, Reduce)
            size = extent(node.axes).constant
            if size is None or size > WINDOW_LIMIT:
                raise IRError(f"{kernel.id}: a reduction over {extent(node.axes)} points is not a small window")
            if node.monoid not in ("sum", "prod", "max", "min"):
                raise IRError(f"{kernel.id}: {node.monoid} over a window is not supported")
            if not any(_slides(arg, node.axes) for arg in node.args):
                raise IRError(f"{kernel.id}: its reduction slides over nothing; the row form does it")
            window = max(window, size)
        check_locals(kernel, program)
        return PointwiseForm(domain, window)

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        points = typical(extent(self.domain))
        if self.window > 1:
            return Schedule(self.name, (256,), warps=4)
        if points <= 2 * hardware.sms * 1024:
            return Schedule(self.name, (256,), warps=4)
        return Schedule(self.name, (512,), warps=4)

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        shapes = ((256, 4), (512, 4), (1024, 4), (2048, 8), (4096, 8), (8192, 16))
        return tuple(Schedule(self.name, (block,), warps=warps) for block, warps in shapes)


def _slides(expr: Expr, axes: tuple[Axis, ...]) -> bool:
    """True where some subscript mixes a reduced axis with another one: a window moves over the input."""
    for load in loads(expr):
        for sub in load.index:
            if isinstance(sub, Index) and sub.axes & set(axes) and sub.axes - set(axes):
                return True
    return False
