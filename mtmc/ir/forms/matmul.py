"""Matmul: a contraction whose operands each have axes of their own; elementwise prologue and epilogue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import (
    Cast,
    Const,
    Contract,
    Expr,
    Load,
    Op,
    Reduce,
    Scan,
    Select,
    dtype_of,
    free_axes,
    walk,
)
from mtmc.ir.forms.form import check_locals, extent, is_plain, nodes, pow2_ceil, stages_of, typical
from mtmc.ir.index import Axis, Dim, Index, delinearize
from mtmc.ir.program import Kernel, Program
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

SHARED = 227 << 10
"""Bytes of shared memory that one block may use (sm_90)."""
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
    guarded: bool = False
    """True for the full-range path beside an encoded product: it seldom runs."""
    rounding: str = "exact"
    """What the reference does with its operands (``Kernel.rounding``)."""
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
        return MatmulForm(batch, m, n, k, tuple(contracts), half, kernel.guard is not None, kernel.rounding)

    @property
    def products(self) -> int:
        """Tensor-core products for each element of the contraction."""
        return sum(len(contract.terms) for contract in self.contracts)

    def sizes(self) -> tuple[int, int, int, int]:
        """Points of batch, m, n and k (a dynamic dim counts as its limit)."""
        b, m, n, k = (typical(extent(axes)) for axes in (self.batch, self.m, self.n, self.k))
        return b, m, n, k

    # -- the flattened product --------------------------------------------------------------------------
    @cached_property
    def flat(self) -> dict[str, Axis]:
        """One axis for each of batch, m, n and k, by name."""
        groups = {"batch": self.batch, "m": self.m, "n": self.n, "k": self.k}
        return {name: Axis(name, extent(axes)) for name, axes in groups.items()}

    @cached_property
    def point(self) -> dict[Axis, Index]:
        """Where the axes of the stages lie on the flattened ones."""
        found: dict[Axis, Index] = {}
        for axes, flat in zip((self.batch, self.m, self.n, self.k), self.flat.values(), strict=True):
            if axes:
                found.update(zip(axes, delinearize(Index.of(flat), [a.extent for a in axes]), strict=True))
        return found

    def matrix(self, program: Program, operand: Expr, left: bool) -> dict[str, Index]:
        """Strides in elements, along ``batch`` (where it has one), ``m`` or ``n``, and ``k``, of an operand that is a
        plain strided matrix with a contiguous side, as a tensor descriptor needs it.

        Raises:
            IRError: the operand is computed, gathered, no matrix, or its rows do not start at multiples of 16 bytes.
        """
        own = "m" if left else "n"
        if not isinstance(operand, Load) or operand.when:
            raise IRError("an operand that is computed on the way in can't come through a descriptor; store it first")
        subscripts = tuple(sub for sub in operand.index if isinstance(sub, Index))
        if len(subscripts) < len(operand.index):
            raise IRError(f"a gather of '{operand.buffer}' can't come through a descriptor")
        buffer = program.buffer(operand.buffer)
        places: dict[Axis | Dim, Index] = dict(self.point.items())
        offset = buffer.offset(subscripts).substitute(places)
        strides = _strides(offset, {self.flat[name]: name for name in ("batch", own, "k")})
        if strides is None or not {own, "k"} <= set(strides):
            raise IRError(f"'{buffer.name}' at {offset} is no matrix that a descriptor can express")
        if 1 not in (strides[own].constant, strides["k"].constant):
            raise IRError(f"'{buffer.name}' at {offset} has no contiguous side")
        fast = "k" if strides["k"].constant == 1 else own
        if any((s * buffer.dtype.bytes % 16).constant != 0 for name, s in strides.items() if name != fast):
            raise IRError(f"rows of '{buffer.name}' do not start at multiples of 16 bytes")
        return strides

    # -- schedules ----------------------------------------------------------------------------------------
    def separate(self, schedule: Schedule) -> bool:
        """True where the large product of a split contraction is added outside of the tensor cores, whose accumulator
        truncates; its corrections, and single products of half operands, are too coarse for that to matter."""
        return schedule.separate and self.half and len(self.contracts) > 1

    def operands(self, left: bool) -> list[Expr]:
        """The distinct operands of one side."""
        side = 0 if left else 1
        return list(dict.fromkeys(term[side] for contract in self.contracts for term in contract.terms))

    def shared_bytes(self, program: Program, schedule: Schedule) -> int:
        """Estimate of the shared memory that the pipeline of a schedule takes."""
        tm, tn, tk = schedule.tile
        width = 2 if self.half else 4 if self._widest(program) is not DType.F64 else 8
        return schedule.stages * tk * width * (tm * len(self.operands(True)) + tn * len(self.operands(False)))

    def fits(self, program: Program, schedule: Schedule, shared: int = SHARED) -> bool:
        """Whether accumulators and operands of a schedule fit in registers and shared memory (sm_90)."""
        tm, tn, _ = schedule.tile
        held = len(self.contracts) + self.separate(schedule)
        # float32 operands are split or fed to FMA in registers, beside their accumulator
        most = 192 if self.half and held > 1 else 128 if self.half else 64
        registers = held * tm * tn // (32 * schedule.warps)
        return registers <= most and self.shared_bytes(program, schedule) + 2048 <= shared

    def default(self, program: Program, hardware: Hardware) -> Schedule:
        if self.guarded:
            return self._sized((128, 128, 16, 8, 3), dot="ieee", persistent=True)
        known = self.tiles(program)
        best = min(known, key=lambda schedule: self._estimate(program, schedule, hardware))
        return replace(best, descriptors=self.half and self._describable(program))

    def tiles(self, program: Program) -> tuple[Schedule, ...]:
        _, m, n, _ = self.sizes()
        wide = self._widest(program) is DType.F64
        dot = "ieee" if wide else "tf32" if self.rounding == "tf32" and not self.half else "tf32x3"
        found: dict[Schedule, None] = {}
        for shape in _HALF_SHAPES if self.half else _DOUBLE_SHAPES if wide else _FLOAT_SHAPES:
            tm, tn, _, _, _ = shape
            if tm <= max(16, pow2_ceil(m)) and tn <= max(16, pow2_ceil(n)):
                schedule = self._sized(shape, dot=dot)
                if self.fits(program, schedule):
                    found[schedule] = None
        return tuple(found) or (self._sized((16, 16, 32, 4, 2), dot=dot),)

    def _sized(self, shape: tuple[int, int, int, int, int], **options: Any) -> Schedule:
        """A schedule whose tile and pipeline are no larger than the product."""
        _, m, n, k = self.sizes()
        tm, tn, tk, warps, stages = shape
        tile = (min(tm, max(16, pow2_ceil(m))), min(tn, max(16, pow2_ceil(n))), min(tk, max(16, pow2_ceil(k))))
        steps = -(-k // tile[2])
        stages = max(1, min(stages, steps))
        return Schedule(self.name, tile, warps=warps, stages=stages, group=8, separate=k > SHALLOW, **options)

    def _estimate(self, program: Program, schedule: Schedule, hardware: Hardware) -> float:
        """Relative time: full waves of tiles, each the slower of its products and its traffic, and its latency, which
        other tiles on the same multiprocessor hide."""
        b, m, n, k = self.sizes()
        tm, tn, tk = schedule.tile
        tiles = b * -(-m // tm) * -(-n // tn)
        waves = -(-tiles // hardware.sms)
        rate = hardware.flops("fp16") if self.half else hardware.flops("tf32") / (1 if schedule.dot == "tf32" else 3.5)
        # wgmma reads 64 rows of the left tile for every n columns; tiles lower than 64 rows do without wgmma
        narrow = tn if tm >= 64 else min(tm, tn)
        rate *= min(1.0, 2 * narrow / (64 + narrow)) * (1.0 if tm >= 64 else 0.6)
        flops = 2.0 * tm * tn * (-(-k // tk) * tk) * self.products / rate
        # operands come out of L2 at twice the rate of memory; results go to memory
        fetched = self.shared_bytes(program, replace(schedule, stages=1)) / tk * k
        moved = (fetched / 2 + 4 * tm * tn) / hardware.bandwidth_Bps
        held = len(self.contracts) + self.separate(schedule)
        registers = (40 if self.half else 140) + held * tm * tn // (32 * schedule.warps)
        room = min(2048 // registers // schedule.warps, SHARED // (self.shared_bytes(program, schedule) + 1024), waves)
        return waves * (max(flops, moved) * hardware.sms + LATENCY_S / max(1, room))

    def _describable(self, program: Program) -> bool:
        try:
            for left in (True, False):
                for operand in self.operands(left):
                    self.matrix(program, operand, left)
        except IRError:
            return False
        return True

    def _widest(self, program: Program) -> DType:
        kinds = [dtype_of(side, program.dtype) for left in (True, False) for side in self.operands(left)]
        return DType.F64 if DType.F64 in kinds else kinds[0]


LATENCY_S = 6e-6
"""What a tile takes beyond its products and its traffic when it is alone on its multiprocessor (measured on an H200: a
product of depth 64 at 128 x 128 tiles, one a multiprocessor, takes 7 us a tile)."""
SHALLOW = 64
"""Depth up to which the tensor core's truncating accumulator costs nothing worth a second one."""

_HALF_SHAPES = (
    (128, 128, 64, 8, 3), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 4, 4), (128, 64, 64, 4, 3),
    (64, 128, 64, 4, 3), (64, 64, 64, 4, 3), (128, 128, 32, 8, 4), (64, 256, 64, 4, 4), (128, 128, 128, 8, 2),
    (128, 32, 64, 4, 4), (32, 128, 64, 4, 4), (16, 128, 128, 4, 3), (128, 16, 128, 4, 3), (32, 32, 128, 4, 3),
    (16, 64, 128, 4, 4), (16, 32, 256, 4, 3),
)  # fmt: skip
_FLOAT_SHAPES = (
    (128, 128, 32, 8, 3), (64, 128, 32, 4, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 4), (128, 128, 32, 8, 4),
    (64, 256, 32, 8, 3), (256, 64, 32, 8, 3), (128, 128, 16, 8, 4), (128, 32, 32, 4, 4), (32, 128, 32, 4, 4),
    (16, 128, 64, 4, 3), (128, 16, 64, 4, 3), (32, 32, 64, 4, 3), (16, 64, 128, 4, 3), (16, 32, 128, 4, 3),
)  # fmt: skip
_DOUBLE_SHAPES = ((64, 64, 16, 4, 3), (128, 64, 16, 8, 3), (64, 32, 16, 4, 3), (32, 32, 32, 4, 3), (16, 32, 32, 2, 3))
"""Tiles worth trying: m, n, k, warps, stages."""


def _strides(offset: Index, axes: dict[Axis, str]) -> dict[str, Index] | None:
    """Stride along each axis of an offset that is linear in them and starts at zero; None for any other."""
    found: dict[str, Index] = {}
    for mono, coef in offset.terms:
        inside = [axes[atom] for atom in mono if isinstance(atom, Axis) and atom in axes]
        rest = Index(((tuple(atom for atom in mono if atom not in axes), coef),))
        if len(inside) != 1 or rest.axes:
            return None
        found[inside[0]] = found.get(inside[0], Index()) + rest
    return found


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
