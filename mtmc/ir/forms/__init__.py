"""Forms: loop structures that a target can express, one matcher a file.

Two kernels can be fused exactly when some form matches the result.
"""

from __future__ import annotations

from mtmc.errors import IRError
from mtmc.ir.forms.form import Form
from mtmc.ir.forms.matmul import MatmulForm
from mtmc.ir.forms.pointwise import PointwiseForm
from mtmc.ir.forms.row import RowForm
from mtmc.ir.forms.scan import ScanForm
from mtmc.ir.program import Kernel, Program

FORMS: tuple[type[MatmulForm] | type[ScanForm] | type[RowForm] | type[PointwiseForm], ...] = (
    MatmulForm,
    ScanForm,
    PointwiseForm,
    RowForm,
)
"""In the order in which they are tried: the more special first."""


def match(program: Program, kernel: Kernel) -> Form:
    """The first form that expresses a kernel; IRError with every form's reason where none does."""
    reasons: list[str] = []
    for form in FORMS:
        try:
            return form.match(program, kernel)
        except IRError as error:
            reasons.append(f"{form.__name__.removesuffix('Form').lower()}: {error}")
    raise IRError(f"no form fits {kernel.id} ({kernel.note}): " + "; ".join(reasons))


__all__ = ["FORMS", "Form", "MatmulForm", "PointwiseForm", "RowForm", "ScanForm", "match"]
