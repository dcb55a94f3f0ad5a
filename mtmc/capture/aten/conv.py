"""Convolutions that are something simpler: depthwise ones (a window reduction) and 1x1 ones (a contraction)."""

from __future__ import annotations

from mtmc.capture.aten.contractions import contract
from mtmc.capture.aten.pooling import Window, per_dim
from mtmc.capture.aten.site import Args, NotLowered, Site, lowers, op, plain, reduce, space
from mtmc.ir.expr import Expr, Stage
from mtmc.ir.index import ZERO, Axis, Index


@lowers("conv1d", "conv2d", "conv3d", "convolution")
def convolution(site: Site, a: Args) -> list[Stage]:
    rank = len(a.weight.shape) - 2
    if getattr(a, "transposed", False) or isinstance(a.padding, str) or len(a.input.shape) != rank + 2:
        raise NotLowered("a transposed convolution, padding by name, or an input without a batch")
    groups, channels, outputs = plain(a.groups), plain(a.input.shape[1]), plain(a.weight.shape[0])
    kernel = [plain(extent) for extent in a.weight.shape[2:]]
    stride, padding = per_dim(a.stride, rank, 1), per_dim(a.padding, rank, 0)
    axes, index = space(site.shape())
    body: Expr
    if groups == channels and groups > 1:
        window = Window(index, a.input.shape, kernel, stride, padding, per_dim(a.dilation, rank, 1))
        channel = index[1] // (outputs // groups)
        x = site.load(a.input, (index[0], channel, *window.where), window.inside)
        w = site.load(a.weight, (index[1], ZERO, *window.taps))
        body = reduce("sum", window.axes, op("mul", x, w))
    elif groups == 1 and set(kernel) == {1} and set(stride) == {1} and set(padding) == {0} and channels > 1:
        axis = Axis("k", a.input.shape[1])
        x = site.load(a.input, (index[0], Index.of(axis), *index[2:]))
        body = contract((axis,), x, site.load(a.weight, (index[1], Index.of(axis), *[ZERO] * rank)))
    else:
        raise NotLowered("a convolution with a window over channels")
    if a.bias is not None:
        body = op("add", body, site.load(a.bias, (index[1],)))
    return [site.store(axes, index, body)]
