"""The elementwise operations and the monoids: one table each, with their numpy meaning.

Targets keep a table of the same names (``codegen/triton/ops.py``); a test holds the two together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class ElementwiseOp:
    """``result``: ``same`` (as the widest argument), ``bool`` or ``float`` (integers become float32)."""

    name: str
    arity: int
    numpy: Callable[..., Any]
    result: str = "same"
    flops: int = 1


def _pow2_scale(x: Any) -> Any:
    """The power of two that brings a magnitude near 2**14: 2**(14 - floor(log2 x)), 1 for 0 and non-finite."""
    x = np.asarray(x, dtype=np.float64)
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    exponent = np.floor(np.log2(safe))
    scale = np.exp2(np.clip(14 - exponent, -126, 126))
    return np.where(np.isfinite(x) & (x > 0), scale, 1.0)


ELEMENTWISE: dict[str, ElementwiseOp] = {
    op.name: op
    for op in (
        ElementwiseOp("add", 2, np.add),
        ElementwiseOp("sub", 2, np.subtract),
        ElementwiseOp("mul", 2, np.multiply),
        ElementwiseOp("div", 2, np.true_divide, "float"),
        ElementwiseOp("floordiv", 2, np.floor_divide),
        ElementwiseOp("remainder", 2, np.mod),
        ElementwiseOp("neg", 1, np.negative),
        ElementwiseOp("abs", 1, np.abs),
        ElementwiseOp("sign", 1, np.sign),
        ElementwiseOp("minimum", 2, np.minimum),
        ElementwiseOp("maximum", 2, np.maximum),
        ElementwiseOp("where", 3, np.where),
        ElementwiseOp("exp", 1, np.exp, "float", 8),
        ElementwiseOp("exp2", 1, np.exp2, "float", 8),
        ElementwiseOp("expm1", 1, np.expm1, "float", 8),
        ElementwiseOp("log", 1, np.log, "float", 8),
        ElementwiseOp("log2", 1, np.log2, "float", 8),
        ElementwiseOp("log1p", 1, np.log1p, "float", 8),
        ElementwiseOp("sqrt", 1, np.sqrt, "float", 4),
        ElementwiseOp("rsqrt", 1, lambda x: 1.0 / np.sqrt(x), "float", 4),
        ElementwiseOp("sin", 1, np.sin, "float", 8),
        ElementwiseOp("cos", 1, np.cos, "float", 8),
        ElementwiseOp("tanh", 1, np.tanh, "float", 12),
        ElementwiseOp("sigmoid", 1, lambda x: 1.0 / (1.0 + np.exp(-x)), "float", 10),
        ElementwiseOp("erf", 1, _erf, "float", 12),
        ElementwiseOp("pow", 2, np.power, "float", 16),
        ElementwiseOp("floor", 1, np.floor),
        ElementwiseOp("ceil", 1, np.ceil),
        ElementwiseOp("trunc", 1, np.trunc),
        ElementwiseOp("round", 1, np.rint),
        ElementwiseOp("eq", 2, np.equal, "bool"),
        ElementwiseOp("ne", 2, np.not_equal, "bool"),
        ElementwiseOp("lt", 2, np.less, "bool"),
        ElementwiseOp("le", 2, np.less_equal, "bool"),
        ElementwiseOp("gt", 2, np.greater, "bool"),
        ElementwiseOp("ge", 2, np.greater_equal, "bool"),
        ElementwiseOp("logical_and", 2, np.logical_and, "bool"),
        ElementwiseOp("logical_or", 2, np.logical_or, "bool"),
        ElementwiseOp("logical_not", 1, np.logical_not, "bool"),
        ElementwiseOp("isnan", 1, np.isnan, "bool"),
        ElementwiseOp("isfinite", 1, np.isfinite, "bool"),
        ElementwiseOp("pow2_scale", 1, _pow2_scale, "float", 4),
    )
}


@dataclass(frozen=True)
class Monoid:
    """An associative combination of tuples.

    ``arity`` is the length of the full tuple. A reduction may give only the first ``lift`` arguments; the
    rest have their lifted values: the element's own flat position for argmax, (0, 1) for moments, 1 for
    maxsumexp. ``parts`` names the components.
    """

    name: str
    arity: int
    parts: tuple[str, ...]
    identity: tuple[float, ...]
    lift: int = 1


MONOIDS: dict[str, Monoid] = {
    monoid.name: monoid
    for monoid in (
        Monoid("sum", 1, ("sum",), (0.0,)),
        Monoid("prod", 1, ("prod",), (1.0,)),
        Monoid("max", 1, ("max",), (-math.inf,)),
        Monoid("min", 1, ("min",), (math.inf,)),
        Monoid("any", 1, ("any",), (0.0,)),
        Monoid("argmax", 2, ("value", "position"), (-math.inf, 2.0**31 - 1)),
        Monoid("argmin", 2, ("value", "position"), (math.inf, 2.0**31 - 1)),
        Monoid("moments", 3, ("mean", "m2", "count"), (0.0, 0.0, 0.0)),
        Monoid("maxsumexp", 2, ("max", "sumexp"), (-math.inf, 0.0)),
    )
}
