"""Activation functions, with the formulas of PyTorch's CUDA kernels (aten/src/ATen/native/cuda/Activation*.cu)."""

from __future__ import annotations

import math

from mtmc.capture.aten.pointwise import elementwise, k
from mtmc.capture.aten.site import Args, NotLowered, Site, lowers, op, plain, space
from mtmc.ir.expr import Expr, Stage
from mtmc.ir.index import Index


def _softplus(x: Expr) -> Expr:
    return op("log1p", op("exp", x))


def _positive(x: Expr, then: Expr, other: Expr) -> Expr:
    return op("where", op("gt", x, k(0)), then, other)


def _six(x: Expr) -> Expr:
    """``clamp(x + 3, 0, 6)``."""
    return op("minimum", op("maximum", op("add", x, k(3)), k(0)), k(6))


@lowers("gelu")
def gelu(site: Site, a: Args) -> list[Stage]:
    def exact(x: Expr) -> Expr:
        return op("mul", op("mul", x, k(0.5)), op("add", k(1), op("erf", op("mul", x, k(math.sqrt(0.5))))))

    def tanh(x: Expr) -> Expr:
        cube = op("mul", op("mul", x, x), x)
        inner = op("mul", k(math.sqrt(2 / math.pi)), op("add", x, op("mul", k(0.044715), cube)))
        return op("mul", op("mul", k(0.5), x), op("add", k(1), op("tanh", inner)))

    return elementwise(site, [a.self], tanh if a.approximate == "tanh" else exact)


@lowers("silu")
def silu(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("div", x, op("add", k(1), op("exp", op("neg", x)))))


@lowers("mish")
def mish(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("mul", x, op("tanh", _softplus(x))))


@lowers("leaky_relu")
def leaky_relu(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: _positive(x, x, op("mul", x, k(a.negative_slope))))


@lowers("elu")
def elu(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: _elu(x, a.alpha, a.scale, a.input_scale))


@lowers("selu")
def selu(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: _elu(x, 1.6732632423543772848, 1.0507009873554804934, 1.0))


@lowers("celu")
def celu(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: _elu(x, a.alpha, 1.0, 1.0 / a.alpha))


def _elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    inner = x if input_scale == 1 else op("mul", x, k(input_scale))
    positive = x if scale == 1 else op("mul", x, k(scale))
    return _positive(x, positive, op("mul", op("expm1", inner), k(alpha * scale)))


@lowers("hardsigmoid")
def hardsigmoid(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("mul", _six(x), k(1 / 6)))


@lowers("hardswish")
def hardswish(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("mul", op("mul", x, _six(x)), k(1 / 6)))


@lowers("softplus")
def softplus(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr) -> Expr:
        inner = x if a.beta == 1 else op("mul", x, k(a.beta))
        soft = _softplus(inner)
        return op("where", op("gt", inner, k(a.threshold)), x, soft if a.beta == 1 else op("div", soft, k(a.beta)))

    return elementwise(site, [a.self], body)


@lowers("log_sigmoid")
def log_sigmoid(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr) -> Expr:
        return op("sub", op("minimum", x, k(0)), op("log1p", op("exp", op("neg", op("abs", x)))))

    return elementwise(site, [a.self], body)


@lowers("softshrink")
def softshrink(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr) -> Expr:
        low = op("where", op("lt", x, k(-a.lambd)), op("add", x, k(a.lambd)), op("mul", x, k(0)))
        return op("where", op("gt", x, k(a.lambd)), op("sub", x, k(a.lambd)), low)

    return elementwise(site, [a.self], body)


@lowers("hardshrink")
def hardshrink(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr) -> Expr:
        inside = op("logical_and", op("ge", x, k(-a.lambd)), op("le", x, k(a.lambd)))
        return op("where", inside, k(0), x)

    return elementwise(site, [a.self], body)


@lowers("threshold")
def threshold(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self, a.threshold, a.value], lambda x, t, v: op("where", op("le", x, t), v, x))


@lowers("prelu")
def prelu(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    x = site.load(a.self, index)
    single = all(extent.constant == 1 for extent in a.weight.shape)
    if not single and (len(index) < 2 or len(a.weight.shape) != 1):
        raise NotLowered("prelu with a weight of unusual shape")
    slope = site.load(a.weight, (Index(),) * len(a.weight.shape) if single else (index[1],))
    return [site.store(axes, index, _positive(x, x, op("mul", slope, x)))]


@lowers("glu")
def glu(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    dim = plain(a.dim) % len(index)
    half = site.shape()[dim]
    gate = tuple(i + half if d == dim else i for d, i in enumerate(index))
    return [site.store(axes, index, op("mul", site.load(a.self, index), op("sigmoid", site.load(a.self, gate))))]
