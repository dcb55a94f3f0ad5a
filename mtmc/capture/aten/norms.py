"""Normalisations: one pass of moments, then one elementwise stage with the shape of the input.

Batch norm in training mode also computes the new running statistics, as results of the same kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mtmc.capture.aten.site import (
    Args,
    NotLowered,
    Site,
    count,
    lowers,
    number,
    op,
    plain,
    points,
    reduce,
    split_space,
)
from mtmc.capture.value import Value
from mtmc.ir.expr import Expr, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.types import DType

EPSILON = {DType.F64: sys.float_info.epsilon, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def normalised(
    site: Site, x: Expr, kept: Sequence[Axis], inner: Sequence[Axis], eps: float
) -> tuple[list[Stage], Expr, Expr, Expr]:
    """Stages for mean and m2 of the rows; ``(x - mean) * rsqrt(m2 / n + eps)``, the mean and m2."""
    first, mean = site.keep(kept, reduce("moments", inner, x, 0))
    second, m2 = site.keep(kept, reduce("moments", inner, x, 1))
    variance = op("div", m2, count(points(inner), DType.F32))
    scale = op("rsqrt", op("add", variance, number(eps, DType.F32)))
    return [first, second], op("mul", op("sub", x, mean), scale), mean, m2


def affine(site: Site, y: Expr, weight: Value | None, bias: Value | None, where: Sequence[Index]) -> Expr:
    """``y * weight + bias`` with both at one index."""
    if weight is not None:
        y = op("mul", y, site.load(weight, where))
    return op("add", y, site.load(bias, where)) if bias is not None else y


def _listed(axes: Sequence[Axis | None]) -> list[Axis]:
    return [axis for axis in axes if axis]


@lowers("layer_norm", "native_layer_norm")
def layer_norm(site: Site, a: Args) -> list[Stage]:
    if any(site.used[1:]):
        raise NotLowered("layer norm that returns its statistics")
    x_value = a.input
    tail = len(a.normalized_shape)
    rank = len(x_value.shape)
    reduced = tuple(range(rank - tail, rank))
    axes, index = split_space(x_value.shape, reduced)
    kept, inner = _listed(axes[: rank - tail]), _listed(axes[rank - tail :])
    x = site.load(x_value, index)
    stages, y, _, _ = normalised(site, x, kept, inner, a.eps)
    return [*stages, site.store(_listed(axes), index, affine(site, y, a.weight, a.bias, index[rank - tail :]))]


@lowers("rms_norm")
def rms_norm(site: Site, a: Args) -> list[Stage]:
    tail = len(a.normalized_shape)
    rank = len(a.input.shape)
    axes, index = split_space(a.input.shape, range(rank - tail, rank))
    kept, inner = _listed(axes[: rank - tail]), _listed(axes[rank - tail :])
    x = site.load(a.input, index)
    eps = EPSILON[a.input.dtype.compute] if a.eps is None else a.eps
    first, total = site.keep(kept, reduce("sum", inner, op("mul", x, x)))
    mean = op("div", total, count(points(inner), DType.F32))
    y = op("mul", x, op("rsqrt", op("add", mean, number(eps, DType.F32))))
    return [first, site.store(_listed(axes), index, affine(site, y, a.weight, None, index[rank - tail :]))]


@lowers("group_norm", "native_group_norm")
def group_norm(site: Site, a: Args) -> list[Stage]:
    if any(site.used[1:]):
        raise NotLowered("group norm that returns its statistics")
    x_value = a.input
    groups = plain(getattr(a, "num_groups", getattr(a, "group", 1)))
    n, channels, *spatial = x_value.shape
    per_group = plain(channels) // groups
    shape = [n, Index.of(groups), Index.of(per_group), *spatial]
    axes, index = split_space(shape, range(2, len(shape)))
    channel = index[1] * per_group + index[2]
    where = (index[0], channel, *index[3:])
    stages, y, _, _ = normalised(site, site.load(x_value, where), _listed(axes[:2]), _listed(axes[2:]), a.eps)
    return [*stages, site.store(_listed(axes), where, affine(site, y, a.weight, a.bias, (channel,)))]


@lowers("instance_norm")
def instance_norm(site: Site, a: Args) -> list[Stage]:
    if not a.use_input_stats or a.running_mean is not None:
        raise NotLowered("instance norm with running statistics")
    rank = len(a.input.shape)
    axes, index = split_space(a.input.shape, range(2, rank))
    stages, y, _, _ = normalised(site, site.load(a.input, index), _listed(axes[:2]), _listed(axes[2:]), a.eps)
    return [*stages, site.store(_listed(axes), index, affine(site, y, a.weight, a.bias, (index[1],)))]


# ---- batch norm ----------------------------------------------------------------------------------------------


@lowers("batch_norm")
def batch_norm(site: Site, a: Args) -> list[Stage]:
    """Results: the output and, in training with running statistics, the new mean and variance (see ``lower.py``)."""
    if not a.training:
        return _inference(site, a)
    rank = len(a.input.shape)
    reduced = [d for d in range(rank) if d != 1]
    axes, index = split_space(a.input.shape, reduced)
    kept, inner = _listed(axes[1:2]), [axis for d, axis in enumerate(axes) if axis and d != 1]
    channel = (index[1],)
    stages, y, mean, m2 = normalised(site, site.load(a.input, index), kept, inner, a.eps)
    stages.append(site.store(_listed(axes), index, affine(site, y, a.weight, a.bias, channel)))
    if len(site.fakes) > 1:
        size = count(points(inner), DType.F32)
        unbiased = op("div", m2, op("sub", size, number(1.0, DType.F32)))
        for i, new, old in ((1, mean, a.running_mean), (2, unbiased, a.running_var)):
            stages.append(site.store(kept, channel, _moved_average(site, old, channel, new, a.momentum), i))
    return stages


def _moved_average(site: Site, old: Value, where: Sequence[Index], new: Expr, momentum: float) -> Expr:
    """``(1 - momentum) * old + momentum * new``."""
    left = op("mul", number(1.0 - momentum, DType.F32), site.load(old, where))
    return op("add", left, op("mul", number(momentum, DType.F32), new))


def _inference(site: Site, a: Args) -> list[Stage]:
    axes, index = split_space(a.input.shape, ())
    channel = (index[1],)
    deviation = op("rsqrt", op("add", site.load(a.running_var, channel), number(a.eps, DType.F32)))
    y = op("mul", op("sub", site.load(a.input, index), site.load(a.running_mean, channel)), deviation)
    return [site.store(_listed(axes), index, affine(site, y, a.weight, a.bias, channel))]
