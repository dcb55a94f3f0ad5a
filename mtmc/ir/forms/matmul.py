"""Matmul: a contraction whose operands each have axes of their own; elementwise prologue and epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, Load, Op, Reduce, Scan, Select, free_axes, walk
from mtmc.ir.forms.form import check_locals, extent, is_plain, nodes, pow2_ceil, stages_of, typical
from mtmc.ir.index import Axis
from mtmc.ir.program import Kernel, Program
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

_EXACT = ("neg", "abs", "maximum", "minimum")
"""Operations whose result is one of their arguments, but for the sign."""


@dataclass(frozen=True)
class MatmulForm:
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    k: tuple[Axis, ...]
    """Axes of the contraction, in its order."""
    contracts: tuple[Contract, ...]
    """Each has an accumulator of its own."""
    half: bool
    """True where every operand is float16 or bfloat16 in memory, so that tensor cores take it as it is."""
    name: str = "matmul"

    @staticmethod
    def match(program: Program, kernel: Kernel) -> MatmulForm:
        spec = stages_of(kernel)
        first = spec.stages[0]
        contracts = [node for node in nodes((first,), Contract) if isinstance(node, Contract)]
        if not contracts:
            raise IRError(f"{kernel.id}: its first stage contracts nothing")
        if nodes(spec.stages, Reduce, Scan) or nodes(spec.stages[1:], Contract):
            raise IRError(f"{kernel.id}: a reduction or a second contraction needs a kernel of its own")
        for stage in spec.stages[1:]:
            if set(stage.axes) != set(first.axes) or not is_plain(stage):
                raise IRError(f"{kernel.id}: the stage of '{stage.target}' is no epilogue of the matrix product")
        k = contracts[0].axes
        left: set[Axis] = set()
        right: set[Axis] = set()
        for contract in contracts:
            if set(contract.axes) != set(k):
                raise IRError(f"{kernel.id}: its contractions run over different axes")
            for a, b in contract.terms:
                if any(isinstance(node, Contract) for side in (a, b) for node in walk(side)):
                    raise IRError(f"{kernel.id}: a contraction inside a contraction needs a kernel of its own")
                left |= free_axes(a) - set(k)
                right |= free_axes(b) - set(k)
        batch = tuple(axis for axis in first.axes if axis in left and axis in right)
        m = tuple(axis for axis in first.axes if axis in left - right)
        n = tuple(axis for axis in first.axes if axis in right - left)
        if not m or not n:
            raise IRError(f"{kernel.id}: one operand has no axis of its own, so this is a matrix-vector product")
        if set(batch) | set(m) | set(n) != set(first.axes):
            raise IRError(f"{kernel.id}: the result has axes that no operand has")
        check_locals(kernel, program)
        operands = [side for contract in contracts for term in contract.terms for side in term]
        half = all(storage(program, side) in (DType.F16, DType.BF16) for side in operands)
        return MatmulForm(batch, m, n, k, tuple(contracts), half)

    @property
    def products(self) -> int:
        """Tensor-core products for each element of the contraction."""
        return sum(len(contract.terms) for contract in self.contracts)

    def sizes(self) -> tuple[int, int, int, int]:
        """Points of batch, m, n and k (a dynamic dim counts as its limit)."""
        b, m, n, k = (typical(extent(axes)) for axes in (self.batch, self.m, self.n, self.k))
        return b, m, n, k

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        _, m, n, k = self.sizes()
        depth = 64 if self.half else 32
        side_m, side_n = min(128, max(16, pow2_ceil(m))), min(128, max(16, pow2_ceil(n)))
        tile = (side_m, side_n, max(16, min(depth, pow2_ceil(k))))
        warps = 8 if side_m * side_n >= 128 * 128 else 4
        return Schedule(self.name, tile, warps=warps, stages=3, group=8)

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        _, m, n, k = self.sizes()
        depth = 64 if self.half else 32
        shapes = (
            (128, 128, depth, 8, 3), (128, 256, depth, 8, 3), (256, 128, depth, 8, 3), (128, 64, depth, 4, 4),
            (64, 128, depth, 4, 4), (64, 64, depth, 4, 4), (128, 128, depth // 2, 8, 4), (64, 256, depth, 8, 3),
            (32, 128, depth, 4, 4), (128, 32, depth, 4, 4), (16, 128, 2 * depth, 4, 3), (32, 32, 2 * depth, 4, 4),
        )  # fmt: skip
        found: dict[Schedule, None] = {}
        for tm, tn, tk, warps, stages in shapes:
            if tm <= max(16, pow2_ceil(m)) and tn <= max(16, pow2_ceil(n)) and tk <= max(16, pow2_ceil(k)):
                found[Schedule(self.name, (tm, tn, tk), warps=warps, stages=stages, group=8)] = None
        return tuple(found)


def storage(program: Program, expr: Expr) -> DType | None:
    """The narrowest type that certainly holds an operand exactly: half where it is loaded from half memory or was
    cast to it, also through operations that make no new digits; None where nothing is known."""
    match expr:
        case Load(buffer):
            return program.dtype(buffer)
        case Cast(dtype, _):
            return dtype
        case Op(name, args) if name in _EXACT:
            return _common(program, args)
        case Op("where", (_, then, other)) | Select(_, then, other):
            return _common(program, (then, other))
    return None


def _common(program: Program, args: tuple[Expr, ...]) -> DType | None:
    kinds = {storage(program, arg) for arg in args if not _small(arg)}
    return kinds.pop() if len(kinds) == 1 else None


def _small(expr: Expr) -> bool:
    """A constant that every float type holds."""
    return isinstance(expr, Const) and abs(expr.value) <= 256 and expr.value == int(expr.value)
