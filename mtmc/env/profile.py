"""Where a Program's time goes: the judge's kernel times where it took them, else the roofline's estimate."""

from __future__ import annotations

from mtmc.data.evaluation import Evaluation
from mtmc.data.hardware import Hardware
from mtmc.ir.cost import is_view, kernel_ms
from mtmc.ir.program import Program


def estimated_times(program: Program, hardware: Hardware) -> dict[str, float]:
    """Kernel id to estimated milliseconds."""
    return {kernel.id: kernel_ms(program, kernel, hardware)[0] for kernel in program.kernels}


def measured_times(program: Program, evaluation: Evaluation | None) -> dict[str, float] | None:
    """Kernel id to measured milliseconds, or None unless every kernel that does work was timed."""
    times = {entry.kernel: entry.ms for entry in evaluation.kernels} if evaluation else {}
    working = [kernel.id for kernel in program.kernels if not is_view(kernel)]
    if not times or not all(name in times for name in working):
        return None
    return {kernel.id: times.get(kernel.id, 0.0) for kernel in program.kernels}


def quantised(value: float) -> str:
    """Two significant digits, without an exponent: texts must not change with the noise of a timing."""
    if value == 0:
        return "0"
    return f"{float(f'{value:.1e}'):.10f}".rstrip("0").rstrip(".") or "0"
