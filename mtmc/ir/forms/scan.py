"""Scan: a running reduction along one axis, with elementwise work before and after it."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Contract, Reduce, Scan, loads
from mtmc.ir.forms.form import check_locals, extent, nodes, pow2_ceil, stages_of, stride_of, typical
from mtmc.ir.index import Axis
from mtmc.ir.program import Kernel, Program
from mtmc.ir.schedule import Schedule


@dataclass(frozen=True)
class ScanForm:
    kept: tuple[Axis, ...]
    axis: Axis
    column_major: bool
    forward: bool
    """True where the scan walks memory upwards: then wide loads stay wide."""
    name: str = "scan"

    @staticmethod
    def match(program: Program, kernel: Kernel) -> ScanForm:
        spec = stages_of(kernel)
        scans = [node for node in nodes(spec.stages, Scan) if isinstance(node, Scan)]
        if not scans:
            raise IRError(f"{kernel.id}: nothing is scanned")
        if nodes(spec.stages, Reduce, Contract):
            raise IRError(f"{kernel.id}: a reduction beside a scan needs a kernel of its own")
        axis = scans[0].axis
        if any(scan.axis != axis for scan in scans):
            raise IRError(f"{kernel.id}: its scans run along different axes")
        if any(scan.monoid not in ("sum", "prod", "max", "min") for scan in scans):
            raise IRError(f"{kernel.id}: only sum, prod, max and min are scanned")
        domain = set(spec.stages[0].axes)
        if any(set(stage.axes) != domain for stage in spec.stages) or axis not in domain:
            raise IRError(f"{kernel.id}: its stages run over different points")
        kept = tuple(a for a in spec.stages[0].axes if a != axis)
        check_locals(kernel, program)
        votes, forward = 0, True
        for stage in spec.stages:
            for load in loads(stage.body):
                forward &= stride_of(program, load, axis) != -1
                votes += any(stride_of(program, load, a) == 1 for a in kept) - (
                    stride_of(program, load, axis) in (1, -1)
                )
        return ScanForm(kept, axis, votes > 0, forward)

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        length, rows = typical(self.axis.extent), typical(extent(self.kept))
        if self.column_major:
            return Schedule(
                self.name, (min(64, pow2_ceil(rows)), min(16, pow2_ceil(length))), loop=length > 16, warps=4
            )
        if 4096 < length <= 32768 and self.forward:
            return Schedule(self.name, (1, pow2_ceil(length)), warps=16)
        if length <= 4096:
            together = max(1, min(2048 // pow2_ceil(length), pow2_ceil(rows)))
            warps = max(1, min(8, pow2_ceil(length) * together // 512))
            return Schedule(self.name, (together, pow2_ceil(length)), warps=warps)
        return Schedule(self.name, (1, 4096), loop=True, warps=8)

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        length, rows = typical(self.axis.extent), typical(extent(self.kept))
        found: dict[Schedule, None] = {}
        if self.column_major:
            for wide, deep in ((32, 32), (64, 16), (128, 8)):
                found[Schedule(self.name, (min(wide, pow2_ceil(rows)), deep), loop=True, warps=4)] = None
            return tuple(found)
        whole = pow2_ceil(length)
        for warps in (4, 8, 16, 32):
            if whole <= 32768 and whole // (32 * warps) in range(2, 65):
                found[Schedule(self.name, (1, whole), warps=warps)] = None
        for block, warps in ((1024, 4), (2048, 8), (4096, 8), (8192, 16)):
            if block < whole:
                found[Schedule(self.name, (1, block), loop=True, warps=warps)] = None
        return tuple(found)
