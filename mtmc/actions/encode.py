"""Encode: the operands of a float32 matrix product as float16 parts with power-of-two scales, for tensor cores.

::

    k3 tile matmul  c[m, n] = sum_k a[m, k] * b[n, k]
 ->
    k5 tile row     amax[m] = max_k |a[m, k]|
    k6 tile row     hi[m, k] = f16(a[m, k] * s[m])             s[m] = pow2_scale(amax[m])
                    lo[m, k] = f16((a[m, k] * s[m] - hi[m, k]) * 2**11)
                    flag    |= a column of a tile of 32 rows leaves the range of the encoding
    k7, k8          the same for b
    k3 tile matmul  c[m, n] = (sum_k hi * hi + 2**-11 * (sum_k lo * hi + hi * lo)) / s[m] / s[n]
    k9 if flag      c[m, n] = sum_k a[m, k] * b[n, k]          in full range

The error-compensated split of Ootomo and Yokota (2022): the result is as accurate as float32 arithmetic. Where the
reference was measured to round its operands to 11 bits anyway, ``hi`` alone does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mtmc.actions import split
from mtmc.actions.action import Action, Value
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import Names, form_of, known, limited, ordered, replace_node, require, scheduled
from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, Load, Op, Reduce, Stage, free_axes, loads, substitute
from mtmc.ir.forms import MatmulForm
from mtmc.ir.forms.form import extent, stride_of
from mtmc.ir.index import ZERO, Axis, Dim, Index, contiguous_strides, delinearize, nonnegative
from mtmc.ir.program import Buffer, Kernel, Program, Stages, Tile
from mtmc.ir.types import DType

KIND = "encode"
TILE = 32
"""Rows whose columns are checked together."""
SMALLEST, LARGEST = 2.0**-13, 65504.0
"""Range of a scaled column's magnitude within which the two parts hold it to float32's accuracy."""
SHIFT = 2.0**11
"""The low part is stored larger by this, so that it stays a normal number."""
_SPLIT = re.compile(rf"encode the operands of ({REGION}) as split fp16(, K-major)?")
_ROUND = re.compile(rf"round the operands of ({REGION}) to fp16(, K-major)?")


def action(region: str, mode: str, layout: str = "kept") -> Action:
    params: tuple[tuple[str, Value], ...] = (("mode", mode), ("layout", layout))
    return Action(KIND, (region,), params)


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    for region, kernel in representatives(program):
        try:
            form = form_of(program, kernel)
        except IRError:
            continue
        if isinstance(form, MatmulForm) and not form.half and kernel.guard is None:
            mode = "split" if kernel.rounding == "exact" else "fp16"
            for layout in ("kept", "kmajor"):
                yield action(region, mode, layout)


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    known(program, kernel)
    where = f"{kernel.id} ({kernel.note})"
    require(kernel.guard is None, f"{where} is the full-range path itself")
    mode, layout = action.get("mode", "split"), action.get("layout", "kept")
    require(mode in ("split", "fp16"), f"'{mode}' is no encoding; there are split, fp16")
    require(layout in ("kept", "kmajor"), f"'{layout}' is no layout; there are kept, kmajor")
    require(
        mode == "split" or kernel.rounding == "tf32",
        f"{where}: the reference keeps all 24 bits of its operands, so 11 are not enough",
    )


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    form = form_of(program, kernel)
    require(isinstance(form, MatmulForm), f"{kernel.id} ({kernel.note}) is no matrix product")
    assert isinstance(form, MatmulForm)
    require(
        len(form.contracts) == 1 and form.products == 1,
        f"{kernel.id} ({kernel.note}) has several products; only a plain one is encoded",
    )
    (contract,) = form.contracts
    left, right = contract.terms[0]
    for side in (left, right):
        dtypes = {program.dtype(load.buffer) for load in loads(side)}
        require(dtypes == {DType.F32}, f"{kernel.id} ({kernel.note}): its operands are not all float32")
    build = _Encoder(
        program, kernel, form, split=action.get("mode") == "split", kmajor=action.get("layout") == "kmajor"
    )
    a = build.operand(left, form.m)
    b = build.same(a, left, right) or build.operand(right, form.n)
    return build.finish(contract, a, b, hardware)


@dataclass(frozen=True)
class _Encoded:
    """What the product reads instead of one operand; all over the operand's own axes."""

    hi: Load
    lo: Load | None
    inverse: Expr
    """1 / scale of the operand's row, an exact power of two."""


class _Encoder:
    def __init__(self, program: Program, kernel: Kernel, form: MatmulForm, split: bool, kmajor: bool) -> None:
        self.program = program
        self.kernel = kernel
        self.form = form
        self.split = split
        self.kmajor = kmajor
        self.names = Names(program)
        self.kernels: list[Kernel] = []
        self.buffers: list[Buffer] = []
        self.flag = self._buffer("flag", DType.I32, ())

    def _buffer(self, stem: str, dtype: DType, axes: tuple[Axis, ...]) -> Buffer:
        shape = tuple(axis.extent for axis in axes)
        # rows of float16 start at 16 bytes, else neither wide loads nor tensor descriptors can read them
        padded = (*shape[:-1], (shape[-1] + 7) // 8 * 8) if dtype is DType.F16 and shape else shape
        buffer = Buffer(self.names.fresh(stem), dtype, shape, contiguous_strides(padded))
        self.buffers.append(buffer)
        return buffer

    def _kernel(self, op: str, *stages: Stage, local: tuple[str, ...] = ()) -> None:
        name = self.names.fresh("k")
        spec = Stages(stages, local)
        self.kernels.append(Kernel(name, spec, f"{op} {self.kernel.op}", lines=self.kernel.lines))

    # -- one operand ----------------------------------------------------------------------------------------
    def operand(self, side: Expr, own: tuple[Axis, ...]) -> _Encoded:
        """Adds the two kernels that encode one operand with axes batch, ``own`` and k."""
        present = free_axes(side)
        batch = tuple(axis for axis in self.form.batch if axis in present)
        rows = batch + own
        k = self.form.k
        amax = self._buffer("amax", DType.F32, rows)
        at = tuple(Index.of(axis) for axis in rows)
        largest = Reduce("max", k, (Op("abs", (side,)),))
        self._kernel("scale", Stage(rows, amax.name, at, largest))
        scale = Op("pow2_scale", (Load(amax.name, at),))
        axes = rows + k if self.kmajor or self._k_contiguous(side) else batch + k + own
        hi = self._buffer("hi", DType.F16, axes)
        lo = self._buffer("lo", DType.F16, axes) if self.split else None
        self._encode(side, scale, batch, own, axes, hi, lo)
        index = tuple(Index.of(axis) for axis in axes)
        inverse = Op("div", (Const(1.0, DType.F32), scale))
        return _Encoded(Load(hi.name, index), Load(lo.name, index) if lo else None, inverse)

    def _k_contiguous(self, side: Expr) -> bool:
        """True where neighbours of the operand in memory lie along k (or nowhere in particular)."""
        strides = [stride_of(self.program, load, self.form.k[-1]) for load in loads(side)]
        return 1 in strides or not any(
            stride_of(self.program, load, axis) == 1 for load in loads(side) for axis in self.form.m + self.form.n
        )

    def _encode(
        self, side: Expr, scale: Expr, batch: tuple[Axis, ...], own: tuple[Axis, ...], axes: tuple[Axis, ...],
        hi: Buffer, lo: Buffer | None,
    ) -> None:  # fmt: skip
        """The kernel that stores the parts and flags what they can't hold, for tiles of rows."""
        tile, row, outer, places, bounds = self._tiles(own)
        kept = batch + outer + (tile,) + self.form.k
        inside = kept + (row,)
        scaled = limited(substitute(Op("mul", (side, scale)), places), bounds)
        index = tuple(Index.of(axis).substitute(places) for axis in axes)
        high = Cast(DType.F16, scaled)
        stages = [Stage(inside, hi.name, index, high, when=bounds)]
        if lo is not None:
            rest = Op("sub", (scaled, Cast(DType.F32, high)))
            low = Cast(DType.F16, Op("mul", (rest, Const(SHIFT, DType.F32))))
            stages.append(Stage(inside, lo.name, index, low, when=bounds))
        column = self._buffer("column", DType.F32, kept)
        at = tuple(Index.of(axis) for axis in kept)
        largest = Reduce("max", (row,), (Op("abs", (scaled,)),), when=bounds)
        stages.append(Stage(kept, column.name, at, largest))
        value = Load(column.name, at)

        def against(name: str, limit: float) -> Expr:
            return Op(name, (value, Const(limit, DType.F32)))

        # False for NaN, which so sets the flag like everything else outside the range.
        held = Op("logical_and", (against("ge", SMALLEST), against("le", LARGEST)))
        fine = Op("logical_or", (against("eq", 0.0), held))
        raised = Cast(DType.I32, Op("logical_not", (fine,)))
        stages.append(Stage(kept, self.flag.name, (), raised, accumulate="max"))
        self._kernel("encode", *stages, local=(column.name,))

    def _tiles(
        self, own: tuple[Axis, ...]
    ) -> tuple[Axis, Axis, tuple[Axis, ...], Mapping[Axis | Dim, Index], tuple[Index, ...]]:
        """Axes of the tile and of the row in it, the axes beside them, where the own axes lie, and a bound."""
        taken = {axis.name for axis in (*self.form.batch, *self.form.m, *self.form.n, *self.form.k)}
        tile_name, row_name = (next(n for n in (c, c * 2, c * 3) if n not in taken) for c in "tr")
        row = Axis(row_name, Index.of(TILE))
        alone = len(own) == 1 or own[-1].extent % TILE == ZERO
        total = own[-1].extent if alone else extent(own)
        tile = Axis(tile_name, (total + TILE - 1) // TILE)
        position = Index.of(tile) * TILE + row
        bound = total - 1 - position
        bounds = () if nonnegative(bound) else (bound,)
        if alone:
            return tile, row, own[:-1], {own[-1]: position}, bounds
        digits = delinearize(position, [axis.extent for axis in own])
        return tile, row, (), dict(zip(own, digits, strict=True)), bounds

    def same(self, a: _Encoded, left: Expr, right: Expr) -> _Encoded | None:
        """The encoding of the left operand for the right one, where both are one tensor in the same role."""
        form = self.form
        if len(form.m) != len(form.n) or any(m.extent != n.extent for m, n in zip(form.m, form.n, strict=True)):
            return None
        over: Mapping[Axis | Dim, Index] = {m: Index.of(n) for m, n in zip(form.m, form.n, strict=True)}
        if substitute(left, over) != right:
            return None
        hi, lo, inverse = (
            substitute(a.hi, over),
            substitute(a.lo, over) if a.lo else None,
            substitute(a.inverse, over),
        )
        assert isinstance(hi, Load) and (lo is None or isinstance(lo, Load))
        return _Encoded(hi, lo, inverse)

    # -- the product ----------------------------------------------------------------------------------------
    def finish(self, contract: Contract, a: _Encoded, b: _Encoded, hardware: Hardware) -> Program:
        total: Expr = Contract(contract.axes, ((a.hi, b.hi),))
        if a.lo and b.lo:
            small = Contract(contract.axes, ((a.lo, b.hi), (a.hi, b.lo)))
            total = Op("add", (total, Op("mul", (small, Const(1 / SHIFT, DType.F32)))))
        total = Op("mul", (Op("mul", (total, a.inverse)), b.inverse))
        spec = known(self.program, self.kernel)
        first = replace(spec.stages[0], body=replace_node(spec.stages[0].body, contract, total))
        product = replace(self.kernel, spec=replace(spec, stages=(first, *spec.stages[1:])), calls=())
        grown = replace(self.program, buffers=self.program.buffers + tuple(self.buffers))
        full = replace(
            self.kernel, id=self.names.fresh("k"), op=f"full-range {self.kernel.op}", calls=(), guard=self.flag.name,
        )  # fmt: skip
        full = replace(full, impl=Tile(replace(form_of(grown, full).default(grown, hardware), dot="ieee")))
        made = [scheduled(grown, kernel, hardware) for kernel in (*self.kernels, product)]
        result = ordered(grown.replace_kernel(self.kernel.id, *made, full))
        for kernel in made[:-1]:  # a maximum along the slow axis of memory has few programs
            parts = split.advised(result, kernel, hardware)
            if parts is not None:
                result = split.rewrite(result, split.action(kernel.id, parts), hardware)
        return result


def describe(program: Program, action: Action) -> str:
    region = named(program, action.region[0])
    tail = ", K-major" if action.get("layout") == "kmajor" else ""
    if action.get("mode") == "fp16":
        return f"round the operands of {region} to fp16{tail}"
    return f"encode the operands of {region} as split fp16{tail}"


def parse(line: str) -> Action | None:
    for pattern, mode in ((_SPLIT, "split"), (_ROUND, "fp16")):
        if found := pattern.fullmatch(line):
            return action(token(found[1]), mode, "kmajor" if found[2] else "kept")
    return None
