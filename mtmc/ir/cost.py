"""What a kernel must do at least, and what that takes on a GPU: a roofline *estimate*, never a measurement.

Arithmetic is counted with every sub-expression evaluated once for each combination of its own axes; bytes
with every distinct element moved once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mtmc.data.hardware import Arithmetic, Hardware
from mtmc.ir.codec import kernel_hash
from mtmc.ir.expr import (
    Contract,
    Expr,
    Load,
    Op,
    Reduce,
    Scan,
    dtype_of,
    free_axes,
    walk,
)
from mtmc.ir.footprint import guarded_loads, of_load, of_map, points
from mtmc.ir.forms.matmul import storage
from mtmc.ir.index import Index
from mtmc.ir.ops import ELEMENTWISE
from mtmc.ir.program import Buffer, Call, Kernel, Library, Opaque, Program, Ref, Role, Stages, Tile
from mtmc.ir.types import DType

Bound: TypeAlias = Literal["memory", "compute", "launch"]
Unit: TypeAlias = Arithmetic | Literal["tf32x3"]
"""Where contractions run. ``tf32x3``: fp32-accurate from three TF32 products."""

_MONOID_FLOPS = {"argmax": 2, "argmin": 2, "moments": 8, "maxsumexp": 10}
_UNITS: dict[DType, Arithmetic] = {DType.F16: "fp16", DType.BF16: "bf16", DType.F64: "fp64"}
_DOTS: dict[str, Unit] = {"ieee": "fp32", "tf32": "tf32", "tf32x3": "tf32x3"}
_GATHERS = ("embedding", "index", "gather", "take", "nll_loss")
"""Operations that read a part of their first argument, which depends on values."""


@dataclass(frozen=True)
class Cost:
    """Of one kernel. ``contract_flops``, the part of ``flops`` in contractions, runs on ``kind``, the rest on
    the ordinary fp32 units. ``launches`` is 0 for a kernel that only makes views."""

    flops: float
    bytes_read: float
    bytes_written: float
    kind: Unit = "fp32"
    contract_flops: float = 0.0
    launches: int = 1

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written

    def compute_ms(self, hardware: Hardware) -> float:
        """Milliseconds of arithmetic."""
        if self.kind == "tf32x3":
            contract = hardware.compute_ms(3 * self.contract_flops, "tf32")
        else:
            contract = hardware.compute_ms(self.contract_flops, self.kind)
        return contract + hardware.compute_ms(self.flops - self.contract_flops)


# ---- one kernel --------------------------------------------------------------------------------------------

_known: dict[tuple[str, tuple[tuple[str, int], ...]], Cost] = {}


def kernel_cost(program: Program, kernel: Kernel, dims: Mapping[str, int] | None = None) -> Cost:
    """Arithmetic and compulsory bytes of one kernel. ``dims`` gives the declared dims; default: their
    limits."""
    env = sizes(program, dims)
    key = (kernel_hash(program, kernel), tuple(sorted(env.items())))
    if key not in _known:
        if len(_known) > 20_000:
            _known.clear()
        if isinstance(kernel.spec, Stages):
            _known[key] = _stages_cost(program, kernel, kernel.spec, env)
        else:
            _known[key] = _opaque_cost(program, kernel, env)
    return _known[key]


def sizes(program: Program, dims: Mapping[str, int] | None = None) -> dict[str, int]:
    """Values of the declared dims."""
    return {dim.name: (dims or {}).get(dim.name, dim.limit) for dim in program.dims}


def is_view(kernel: Kernel) -> bool:
    """True where the kernel only renames memory, and so is free."""
    return isinstance(kernel.spec, Opaque) and bool(kernel.calls) and all(call.view for call in kernel.calls)


def stored_bytes(buffer: Buffer, dims: Mapping[str, int]) -> int:
    """Bytes of the buffer's distinct elements (an expanded dimension, of stride 0, holds one)."""
    layout = zip(buffer.shape, buffer.strides, strict=True)
    return math.prod(int(extent.evaluate(dims)) for extent, stride in layout if stride.terms) * buffer.dtype.bytes


def _launches(kernel: Kernel) -> int:
    if isinstance(kernel.impl, Library):
        return max(sum(not call.view for call in kernel.calls), 0 if is_view(kernel) else 1)
    return 1


def _stages_cost(program: Program, kernel: Kernel, spec: Stages, env: Mapping[str, int]) -> Cost:
    flops = contract_flops = 0.0
    seen: set[Expr] = set()
    kind: Unit = "fp32"
    for stage in spec.stages:
        for node in walk(stage.body):
            if isinstance(node, Reduce):
                node = replace(node, part=0)  # all parts of a tuple come from one reduction
            if node in seen:
                continue
            seen.add(node)
            count = _flops(node, env)
            flops += count
            if isinstance(node, Contract):
                contract_flops += count
                kind = _unit(program, kernel, node)
    read = sum(_bytes_read(program, kernel, name, env) for name in kernel.reads)
    written: dict[str, int] = {}
    for stage in spec.stages:
        if stage.target not in spec.locals:
            buffer = program.buffer(stage.target)
            touched = of_map(stage.store, buffer.shape, stage.when, env).at_most * buffer.dtype.bytes
            written[stage.target] = min(written.get(stage.target, 0) + touched, stored_bytes(buffer, env))
    return Cost(flops, read, sum(written.values()), kind, contract_flops, _launches(kernel))


def _flops(node: Expr, env: Mapping[str, int]) -> float:
    """Of one node, without its children."""
    match node:
        case Op(name, _):
            return ELEMENTWISE[name].flops * points(free_axes(node), env)
        case Reduce(monoid, axes, _, _):
            return _MONOID_FLOPS.get(monoid, 1) * points(free_axes(node) | set(axes), env)
        case Scan(_, axis, _):
            return points(free_axes(node) | {axis}, env)
        case Contract(axes, terms):
            return 2.0 * len(terms) * points(free_axes(node) | set(axes), env)
    return 0.0


def _unit(program: Program, kernel: Kernel, contract: Contract) -> Unit:
    operands = [side for term in contract.terms for side in term]
    types = [storage(program, operand) or dtype_of(operand, program.dtype) for operand in operands]
    kinds = {_UNITS.get(dtype, "fp32") for dtype in types}
    if len(kinds) == 1 and (unit := kinds.pop()) != "fp32":
        return unit
    if isinstance(kernel.impl, Tile) and kernel.impl.schedule.form == "matmul":
        return _DOTS.get(kernel.impl.schedule.dot, "fp32")
    return "tf32" if kernel.rounding == "tf32" else "fp32"


def _bytes_read(program: Program, kernel: Kernel, name: str, env: Mapping[str, int]) -> int:
    """Different parts of a buffer add up; the same part through different axes counts once."""
    buffer = program.buffer(name)
    parts: dict[tuple[object, ...], int] = {}
    for load, _ in _loads(kernel, name):
        footprint = of_load(load, buffer.shape, env)
        ranges = tuple((sub.lower, sub.upper) for sub in load.index if isinstance(sub, Index))
        parts[(ranges, footprint.at_most)] = footprint.at_most
    return min(sum(parts.values()) * buffer.dtype.bytes, stored_bytes(buffer, env))


def _loads(kernel: Kernel, name: str) -> Iterator[tuple[Load, bool]]:
    """Loads of a buffer with all predicates that hold around them, and whether those are all known."""
    if isinstance(kernel.spec, Stages):
        for stage in kernel.spec.stages:
            yield from (item for item in guarded_loads(stage.body, stage.when) if item[0].buffer == name)


# ---- opaque kernels ----------------------------------------------------------------------------------------


def _opaque_cost(program: Program, kernel: Kernel, env: Mapping[str, int]) -> Cost:
    if is_view(kernel):
        return Cost(0.0, 0.0, 0.0, launches=0)
    written = sum(stored_bytes(program.buffer(name), env) for name in kernel.writes)
    read = 0
    gathered = _gathered(kernel)
    for name in kernel.reads:
        size = stored_bytes(program.buffer(name), env)
        read += min(size, written) if name in gathered else size
    flops = float(sum(_call_flops(program, call, env) for call in kernel.calls))
    kind: Unit = "tf32" if kernel.rounding == "tf32" else "fp32"
    for name in kernel.writes[:1]:
        kind = _UNITS.get(program.dtype(name), kind)
    return Cost(flops, read, written, kind, flops, _launches(kernel))


def _operation(call: Call) -> str:
    """``conv2d`` of ``aten.conv2d.default``."""
    return call.target.removeprefix("aten.").split(".")[0].strip("_")


def _gathered(kernel: Kernel) -> set[str]:
    return {
        call.args[0].name
        for call in kernel.calls
        if call.args and isinstance(call.args[0], Ref) and _operation(call).startswith(_GATHERS)
    }


def _shape(program: Program, arg: object, env: Mapping[str, int]) -> tuple[int, ...] | None:
    """Of an argument or result that is a buffer; None for what stays inside the calls."""
    name = arg.name if isinstance(arg, Ref) else arg
    if not isinstance(name, str) or name not in program.table:
        return None
    return tuple(int(extent.evaluate(env)) for extent in program.table[name].shape)


def _call_flops(program: Program, call: Call, env: Mapping[str, int]) -> float:
    """Multiply-adds count two; 0 where the shapes do not tell."""
    operation = _operation(call)
    args = [_shape(program, arg, env) for arg in call.args]
    out = _shape(program, call.results[0], env) if call.results else None
    first, second = (args + [None, None])[:2]
    if "conv" in operation and second is not None:
        transposed = "transpose" in operation or (len(call.args) > 6 and call.args[6] is True)
        moved = first if transposed else out
        return 2.0 * math.prod(moved) * math.prod(second[1:]) if moved is not None else 0.0
    if operation in ("linear", "mm", "matmul", "bmm", "mv") and first and out is not None:
        return 2.0 * math.prod(out) * first[-1]
    if operation in ("addmm", "baddbmm") and second and out is not None:
        return 2.0 * math.prod(out) * second[-1]
    if operation.startswith("scaled_dot_product") and first and second:
        return 4.0 * math.prod(first) * second[-2]
    if operation.split("_")[0] in ("lstm", "gru", "rnn") and first and len(call.args) > 2:
        weights = [_shape(program, arg, env) for arg in _flat(call.args[2:4])]
        steps = math.prod(first[:-1])  # sequence x batch
        return 2.0 * steps * sum(math.prod(shape) for shape in weights if shape and len(shape) == 2)
    return 0.0


def _flat(args: Iterable[object]) -> Iterator[object]:
    for arg in args:
        if isinstance(arg, tuple):
            yield from _flat(arg)
        else:
            yield arg


# ---- time --------------------------------------------------------------------------------------------------


def kernel_ms(
    program: Program, kernel: Kernel, hardware: Hardware, dims: Mapping[str, int] | None = None
) -> tuple[float, Bound]:
    """Estimated milliseconds, launch included, and what limits the kernel. A guarded kernel counts as a
    launch: it hardly ever runs."""
    cost = kernel_cost(program, kernel, dims)
    launch = cost.launches * hardware.launch_us * 1e-3
    if kernel.guard is not None or cost.launches == 0:
        return launch, "launch"
    memory, compute = hardware.memory_ms(cost.bytes), cost.compute_ms(hardware)
    bound: Bound = "memory" if memory >= compute else "compute"
    return max(memory, compute) + launch, "launch" if max(memory, compute) < launch else bound


def program_ms(program: Program, hardware: Hardware, dims: Mapping[str, int] | None = None) -> float:
    """Estimated milliseconds of all kernels, one after another."""
    return sum(kernel_ms(program, kernel, hardware, dims)[0] for kernel in program.kernels)


roofline_ms = program_ms


def shares(program: Program, hardware: Hardware, dims: Mapping[str, int] | None = None) -> dict[str, float]:
    """Share of the estimated time by kernel id; they add up to 1 (all 0 where nothing costs anything)."""
    times = {kernel.id: kernel_ms(program, kernel, hardware, dims)[0] for kernel in program.kernels}
    total = sum(times.values())
    return {name: time / total if total else 0.0 for name, time in times.items()}


def generated_share(program: Program, hardware: Hardware, dims: Mapping[str, int] | None = None) -> float:
    """Share of the estimated time in generated kernels (Tile, Source); 1.0 where no kernel costs anything."""
    times = shares(program, hardware, dims)
    if not any(times.values()):
        return 1.0
    return sum(times[kernel.id] for kernel in program.kernels if not isinstance(kernel.impl, Library))


# ---- floor -------------------------------------------------------------------------------------------------


def live_kernels(program: Program) -> tuple[Kernel, ...]:
    """Kernels that some result depends on, in order."""
    needed = set(program.live_out)
    live: list[Kernel] = []
    for kernel in reversed(program.kernels):
        if needed & set(kernel.writes):
            live.append(kernel)
            needed |= set(kernel.reads) | ({kernel.guard} if kernel.guard else set())
    return tuple(reversed(live))


def floor_bytes(program: Program, dims: Mapping[str, int] | None = None) -> int:
    """Bytes that no implementation can avoid: what results depend on is read once, results are written once.

    A lower limit by proof: constants, gathered tables and what only a predicate may reach do not count.
    """
    env = sizes(program, dims)
    live = live_kernels(program)
    least: dict[str, int] = {}
    for kernel in live:
        for name in kernel.reads if kernel.guard is None else ():
            buffer = program.buffer(name)
            if buffer.role in (Role.INPUT, Role.PARAMETER, Role.STATE):
                certain = min(_least_read(kernel, buffer, env) * buffer.dtype.bytes, stored_bytes(buffer, env))
                least[name] = max(least.get(name, 0), certain)
    views = {name for kernel in live if is_view(kernel) for name in kernel.writes}
    made = {name for kernel in live for name in kernel.writes} - views
    return sum(least.values()) + sum(stored_bytes(program.buffer(name), env) for name in program.live_out & made)


def _least_read(kernel: Kernel, buffer: Buffer, env: Mapping[str, int]) -> int:
    """Elements that the kernel certainly reads."""
    if isinstance(kernel.spec, Opaque):
        direct = {name for call in kernel.calls if not call.view for name in call.refs()} - _gathered(kernel)
        return math.prod(int(e.evaluate(env)) for e in buffer.shape) if buffer.name in direct else 0
    found = (of_load(load, buffer.shape, env).at_least for load, known in _loads(kernel, buffer.name) if known)
    return max(found, default=0)


__all__ = [
    "Bound", "Cost", "Unit", "floor_bytes", "generated_share", "is_view", "kernel_cost", "kernel_ms",
    "live_kernels", "program_ms", "roofline_ms", "shares", "sizes", "stored_bytes",
]  # fmt: skip
