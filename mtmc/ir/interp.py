"""The slow numpy meaning of every spec: what all rewrites and all generated code are held against.

A stage is evaluated at all its points at once. Inside, every value is an array with one dimension for each
axis in scope, of size 1 where the value does not depend on the axis; a reduction adds its axes at the end and
removes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from mtmc.errors import IRError
from mtmc.ir.expr import (
    Cast,
    Const,
    Contract,
    Expr,
    IndexValue,
    Load,
    Op,
    Reduce,
    Scan,
    Select,
    Stage,
    Subscript,
    dtype_of,
)
from mtmc.ir.index import Axis, Dim, Index
from mtmc.ir.ops import ELEMENTWISE, MONOIDS
from mtmc.ir.program import Kernel, Opaque, Program, Role
from mtmc.ir.types import DType

Precision: TypeAlias = Literal["float64", "storage"]
Array: TypeAlias = "np.ndarray[Any, Any]"
LibraryCallback: TypeAlias = Callable[[Kernel, dict[str, Array]], Mapping[str, Array]]


def run(
    program: Program,
    values: Mapping[str, Any],
    library: LibraryCallback | None = None,
    precision: Precision = "float64",
) -> dict[str, Array]:
    """The value of every buffer after the program ran, state updates applied.

    ``values``: arrays for all buffers that are not temporaries, by name, and integers for the dims (those
    that are an extent of a given array may be left out). ``precision``: with ``float64`` all floating-point
    values are float64 and nothing rounds; with ``storage`` kernels compute in their compute types and a store
    rounds to the type of the buffer (bfloat16 values are float32 arrays). ``library`` runs Opaque kernels: it
    takes the kernel and the arrays it reads, and returns those it writes, by name.

    Raises IRError for a missing value, a wrong shape, an index out of range, and for an Opaque kernel without
    ``library``.
    """
    arrays, dims = _bind(program, values, precision)
    for kernel in program.kernels:
        if kernel.guard is not None and not arrays[kernel.guard].reshape(-1)[0]:
            continue
        if isinstance(kernel.spec, Opaque):
            if library is None:
                raise IRError(f"kernel {kernel.id} ({kernel.note}) is opaque: give interp.run a library callback")
            results = library(kernel, {name: arrays[name] for name in kernel.reads})
            for name in kernel.writes:
                if name not in results:
                    raise IRError(f"the library callback gave no '{name}' for {kernel.id} ({kernel.note})")
                arrays[name] = store_as(results[name], program.dtype(name), precision)
            continue
        for stage in kernel.spec.stages:
            try:
                _Evaluator(program, arrays, dims, precision).stage(stage)
            except IRError as error:
                where = f"kernel {kernel.id} ({kernel.note}), {stage.target}"
                raise IRError(f"{where}: {error.message}") from error
    for update, value in [(update, arrays[update.value]) for update in program.updates]:
        arrays[update.state] = store_as(value, program.dtype(update.state), precision)
    return arrays


def round_bfloat16(values: Array) -> Array:
    """Float32 values rounded to the nearest bfloat16, ties to even; NaN stays NaN."""
    wide = np.asarray(values, dtype=np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(wide), wide, rounded)


def store_as(value: Any, dtype: DType, precision: Precision) -> Array:
    """The array as a buffer of ``dtype`` holds it."""
    value = np.asarray(value)
    with np.errstate(all="ignore"):
        if dtype is DType.BOOL:
            return np.asarray(value != 0)
        if dtype.is_integer:
            whole = np.asarray(np.trunc(value)).astype(np.int64) if value.dtype.kind == "f" else value
            return whole.astype(dtype.value)
        if precision == "float64":
            return value.astype(np.float64)
        return round_bfloat16(value) if dtype is DType.BF16 else value.astype(dtype.value)


def _bind(program: Program, values: Mapping[str, Any], precision: Precision) -> tuple[dict[str, Array], dict[str, int]]:
    arrays: dict[str, Array] = {}
    dims = {dim.name: int(values[dim.name]) for dim in program.dims if dim.name in values}
    for buffer in program.buffers:
        if buffer.role is Role.TEMP:
            continue
        if buffer.name not in values:
            raise IRError(f"no value for {buffer.role.value} '{buffer.name}'")
        arrays[buffer.name] = np.array(store_as(values[buffer.name], buffer.dtype, precision))
        for extent, size in zip(buffer.shape, arrays[buffer.name].shape, strict=False):
            if isinstance(extent.single, Dim):
                dims.setdefault(extent.single.name, size)
    missing = [dim.name for dim in program.dims if dim.name not in dims]
    if missing:
        raise IRError(f"no value for the declared dims {', '.join(missing)}")
    for name, array in arrays.items():
        shape = tuple(extent.evaluate(dims) for extent in program.buffer(name).shape)
        if array.shape != shape:
            raise IRError(f"'{name}' has shape {array.shape}, the program declares {shape}")
    return arrays, dims


@dataclass(frozen=True)
class _Grid:
    """The axes in scope. ``mask`` (broadcast over the grid) is False at points whose value is not used."""

    env: dict[str, Any]
    """Dims as integers, axes as ranges along their own dimension."""
    places: dict[str, int]
    extents: tuple[int, ...]
    mask: Array

    def extended(self, axes: Iterable[Axis]) -> _Grid:
        """With further axes at the end; an axis that is bound again hides the outer one."""
        axes = tuple(axes)
        sizes = tuple(int(axis.extent.evaluate(self.env)) for axis in axes)
        count = len(self.extents) + len(axes)

        def widen(value: Any) -> Any:
            return value.reshape(value.shape + (1,) * len(axes)) if isinstance(value, np.ndarray) else value

        env = {name: widen(value) for name, value in self.env.items()}
        places = dict(self.places)
        for place, (axis, size) in enumerate(zip(axes, sizes, strict=True), start=len(self.extents)):
            env[axis.name] = np.arange(size).reshape((1,) * place + (size,) + (1,) * (count - place - 1))
            places[axis.name] = place
        return _Grid(env, places, self.extents + sizes, widen(self.mask))

    def index(self, index: Index) -> Array:
        try:
            value = np.asarray(index.evaluate(self.env))
        except KeyError as error:
            raise IRError(f"axis {error.args[0]} in '{index}' is not in scope") from error
        return value.reshape((1,) * len(self.extents)) if value.ndim == 0 else value

    def holds(self, when: Iterable[Index]) -> Array:
        held = np.ones((1,) * len(self.extents), dtype=bool)
        for index in when:
            held = held & (self.index(index) >= 0)
        return held

    def where(self, held: Array) -> _Grid:
        return replace(self, mask=self.mask & held)


class _Evaluator:
    def __init__(self, program: Program, arrays: dict[str, Array], dims: dict[str, int], precision: Precision) -> None:
        self.program = program
        self.arrays = arrays
        self.dims = dims
        self.precision = precision

    # -- stages -------------------------------------------------------------------------------------------
    def stage(self, stage: Stage) -> None:
        start = _Grid(dict(self.dims), {}, (), np.ones((), dtype=bool))
        grid = start.extended(stage.axes)
        held = grid.holds(stage.when)
        with np.errstate(all="ignore"):
            body = self.value(stage.body, grid.where(held))
        buffer = self.program.buffer(stage.target)
        shape = tuple(int(extent.evaluate(self.dims)) for extent in buffer.shape)
        if stage.target not in self.arrays:
            # NaN shows elements that no stage stores.
            start_value = 0.0 if stage.accumulate or not buffer.dtype.is_float else math.nan
            self.arrays[stage.target] = store_as(np.full(shape, start_value), buffer.dtype, self.precision)
        target = self.arrays[stage.target]
        places = [grid.index(index) for index in stage.store]
        self._check_range(stage.target, places, shape, grid.mask & held)
        picked = np.broadcast_to(held, grid.extents)
        where = tuple(np.broadcast_to(place, grid.extents)[picked] for place in places)
        stored = np.broadcast_to(store_as(body, buffer.dtype, self.precision), grid.extents)[picked]
        if not where:  # a 0-d target
            where, target = (np.zeros(stored.shape, dtype=np.int64),), target.reshape(1)
        match stage.accumulate:
            case None:
                target[where] = stored
            case "add":
                np.add.at(target, where, stored)
            case "max":
                np.maximum.at(target, where, stored)
            case other:
                raise IRError(f"no way to accumulate by '{other}'; use add or max")

    def _check_range(self, name: str, places: list[Array], shape: tuple[int, ...], mask: Array) -> None:
        if len(places) != len(shape):
            raise IRError(f"'{name}' has {len(shape)} dimensions and is indexed with {len(places)}")
        for dimension, (place, size) in enumerate(zip(places, shape, strict=True)):
            wrong = ((place < 0) | (place >= size)) & mask
            if wrong.any():
                outside = int(np.broadcast_to(place, wrong.shape)[wrong][0])
                raise IRError(f"index {outside} of '{name}' leaves dimension {dimension} of size {size}")

    # -- expressions --------------------------------------------------------------------------------------
    def type_of(self, expr: Expr) -> DType:
        return dtype_of(expr, self.program.dtype)

    def numpy_type(self, dtype: DType) -> Any:
        if dtype.is_float:
            return np.float64 if self.precision == "float64" else np.dtype(dtype.compute.value)
        return np.dtype(dtype.compute.value)

    def value(self, expr: Expr, grid: _Grid) -> Array:
        result = self._value(expr, grid)
        return np.asarray(result).astype(self.numpy_type(self.type_of(expr)), copy=False)

    def _value(self, expr: Expr, grid: _Grid) -> Any:
        match expr:
            case Const(value, dtype):
                return np.full((1,) * len(grid.extents), value, dtype=self.numpy_type(dtype))
            case IndexValue(index, _):
                return grid.index(index)
            case Load():
                return self._load(expr, grid)
            case Op(name, args):
                operands = [self.value(arg, grid) for arg in args]
                if ELEMENTWISE[name].result != "bool":
                    common = self.numpy_type(self.type_of(expr))
                    first = 1 if name == "where" else 0
                    operands[first:] = [operand.astype(common) for operand in operands[first:]]
                return ELEMENTWISE[name].numpy(*operands)
            case Select(when, then, other):
                held = grid.holds(when)
                below = self.value(other, grid.where(~held))
                return np.where(held, self.value(then, grid.where(held)), below)
            case Cast(dtype, arg):
                return store_as(self.value(arg, grid), dtype, self.precision)
            case Reduce():
                return self._reduce(expr, grid)
            case Scan(monoid, axis, arg):
                return self._scan(monoid, axis, self.value(arg, grid), grid)
            case Contract(axes, terms):
                inner = grid.extended(axes)
                return sum(self._dot(self.value(a, inner), self.value(b, inner), grid, inner) for a, b in terms)
        raise IRError(f"not an expression: {expr!r}")

    def _load(self, load: Load, grid: _Grid) -> Array:
        if load.buffer not in self.arrays:
            raise IRError(f"'{load.buffer}' is read before anything wrote it")
        source = self.arrays[load.buffer]
        held = grid.holds(load.when)
        valid = grid.where(held)
        places = [self._subscript(subscript, valid) for subscript in load.index]
        self._check_range(load.buffer, places, source.shape, valid.mask)
        clamped = [np.clip(place, 0, size - 1) for place, size in zip(places, source.shape, strict=True)]
        value = source[tuple(clamped)] if clamped else source.reshape((1,) * len(grid.extents))
        wide = value.astype(self.numpy_type(self.program.dtype(load.buffer)))
        return np.where(held, wide, wide.dtype.type(load.other)) if load.when else wide

    def _subscript(self, subscript: Subscript, grid: _Grid) -> Array:
        return grid.index(subscript) if isinstance(subscript, Index) else self.value(subscript, grid)

    # -- reductions ---------------------------------------------------------------------------------------
    def _reduce(self, reduce: Reduce, grid: _Grid) -> Array:
        inner = grid.extended(reduce.axes)
        held = inner.holds(reduce.when)
        outer = len(grid.extents)
        sizes = inner.extents[outer:]

        def flat(value: Array) -> Array:
            """The reduced axes at full extent, as one last dimension."""
            wide = np.broadcast_to(value, value.shape[:outer] + sizes)
            return wide.reshape(wide.shape[:outer] + (math.prod(sizes),))

        args = [flat(self.value(arg, inner.where(held))) for arg in reduce.args]
        return np.asarray(_combine(reduce.monoid, args, reduce.part, flat(held)))

    def _scan(self, monoid: str, axis: Axis, value: Array, grid: _Grid) -> Array:
        if axis.name not in grid.places:
            raise IRError(f"the scan along {axis.name} is outside that axis")
        place = grid.places[axis.name]
        shape = value.shape[:place] + (grid.extents[place],) + value.shape[place + 1 :]
        accumulate = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}.get(monoid)
        if accumulate is None:
            raise IRError(f"no scan by '{monoid}'; use sum, prod, max or min")
        return np.asarray(accumulate.accumulate(np.broadcast_to(value, shape), axis=place, dtype=value.dtype))

    def _dot(self, a: Array, b: Array, grid: _Grid, inner: _Grid) -> Array:
        """``sum over the inner axes of a * b`` as one batched matrix product."""
        kind = np.result_type(a, b) if a.dtype != bool else self.numpy_type(DType.F32)
        a, b = a.astype(kind), b.astype(kind)
        outer = len(grid.extents)
        scale = 1
        for place in range(outer, len(inner.extents)):  # an axis of one operand alone is summed there
            if a.shape[place] == 1 or b.shape[place] == 1:
                scale *= inner.extents[place] if a.shape[place] == b.shape[place] == 1 else 1
                a, b = a.sum(axis=place, keepdims=True), b.sum(axis=place, keepdims=True)
        bound = [place for place in range(outer, len(inner.extents)) if a.shape[place] > 1]
        rows = [place for place in range(outer) if a.shape[place] > 1 and b.shape[place] == 1]
        columns = [place for place in range(outer) if b.shape[place] > 1 and a.shape[place] == 1]
        both = [place for place in range(outer) if a.shape[place] > 1 and b.shape[place] > 1]

        def matrix(value: Array, groups: list[list[int]]) -> Array:
            kept = [place for group in groups for place in group]
            rest = [place for place in range(value.ndim) if place not in kept]
            sizes = [math.prod(value.shape[place] for place in group) for group in groups]
            return value.transpose(kept + rest).reshape(sizes)

        product = matrix(a, [both, rows, bound]) @ matrix(b, [both, bound, columns])
        order = both + rows + columns
        shaped = product.reshape([inner.extents[place] for place in order] + [1] * (outer - len(order)))
        rest = [place for place in range(outer) if place not in order]
        return shaped.transpose(np.argsort(order + rest, kind="stable")) * kind.type(scale)


def _combine(monoid: str, args: list[Array], part: int, held: Array) -> Array:
    """A component of the combination along the last axis, of the elements where ``held``."""
    if monoid not in MONOIDS:
        raise IRError(f"no monoid '{monoid}'")
    first = args[0]
    match monoid:
        case "sum":
            return np.sum(np.where(held, first, first.dtype.type(0)), axis=-1, dtype=first.dtype)
        case "prod":
            return np.prod(np.where(held, first, first.dtype.type(1)), axis=-1, dtype=first.dtype)
        case "any":
            return np.any(held & (first != 0), axis=-1)
        case "max":
            return np.max(np.where(held, first, _lowest(first.dtype)), axis=-1)
        case "min":
            return np.min(np.where(held, first, _highest(first.dtype)), axis=-1)
        case "argmax" | "argmin":
            return _extreme(args, part, held, largest=monoid == "argmax")
        case "moments":
            return _moments(args, part, held)
        case "maxsumexp":
            return _max_sum_exp(args, part, held)
    raise IRError(f"the interpreter has no '{monoid}'")


def _lowest(dtype: Any) -> Any:
    if dtype.kind == "b":
        return False
    return dtype.type(-np.inf) if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if dtype.kind == "b":
        return True
    return dtype.type(np.inf) if dtype.kind == "f" else np.iinfo(dtype).max


def _extreme(args: list[Array], part: int, held: Array, largest: bool) -> Array:
    """Value or position of the extreme: NaN wins, and of equal ones the smallest position, as in PyTorch."""
    value = args[0]
    position = args[1] if len(args) > 1 else np.arange(value.shape[-1])
    monoid = "max" if largest else "min"
    best = _combine(monoid, [value], 0, held)[..., None]
    if part == 0:
        return best[..., 0]
    wins = held & ((value == best) | ((value != value) & (best != best)))
    far = np.iinfo(np.int64).max
    found = np.min(np.where(wins, position.astype(np.int64), far), axis=-1)
    return np.where(found == far, int(MONOIDS[f"arg{monoid}"].identity[1]), found)


def _moments(args: list[Array], part: int, held: Array) -> Array:
    """Mean, sum of squared deviations, count (Chan, Golub and LeVeque, 1979)."""
    mean = args[0]
    m2, count = (args[1], args[2]) if len(args) > 1 else (np.zeros_like(mean), np.ones_like(mean))
    count = np.where(held, count, count.dtype.type(0))
    mean = np.where(count > 0, mean, mean.dtype.type(0))
    total = np.sum(count, axis=-1, keepdims=True)
    center = np.sum(mean * count, axis=-1, keepdims=True) / np.maximum(total, 1)
    if part == 0:
        return center[..., 0]
    if part == 2:
        return total[..., 0]
    return np.sum(np.where(held, m2, m2.dtype.type(0)) + count * (mean - center) ** 2, axis=-1)


def _max_sum_exp(args: list[Array], part: int, held: Array) -> Array:
    """The maximum and the sum of exponentials relative to it; an infinite maximum counts itself as one."""
    value = np.where(held, args[0], args[0].dtype.type(-np.inf))
    weight = np.where(held, args[1] if len(args) > 1 else np.ones_like(value), value.dtype.type(0))
    largest = np.max(value, axis=-1, keepdims=True)
    if part == 0:
        return largest[..., 0]
    scaled = np.where(value == largest, value.dtype.type(1), np.exp(value - largest))
    return np.sum(np.where(weight == 0, weight, weight * scaled), axis=-1)
