"""Elementwise operations with PyTorch's exact formulas (aten/src/ATen/native/cuda/*Kernel.cu) and type promotion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mtmc.capture.aten.site import Args, NotLowered, Piece, Promotion, Site, lowers, number, op, space
from mtmc.capture.value import Value
from mtmc.ir.expr import Expr, Stage
from mtmc.ir.program import Ref
from mtmc.ir.types import DType

FLOAT = Promotion.INT_TO_FLOAT
SAME = Promotion.DEFAULT


def elementwise(site: Site, values: Sequence[Any], body: Callable[..., Expr], kind: Promotion = SAME) -> list[Stage]:
    """One stage over the result's shape: ``body`` of the values, broadcast and promoted (None stays None)."""
    axes, index = space(site.shape())
    dtype = site.common([v for v in values if v is not None], kind)
    args = [None if v is None else site.at(v, index, dtype) for v in values]
    return [site.store(axes, index, body(*args))]


def k(value: float) -> Expr:
    """A float constant; float32 and float64 mix to float64."""
    return number(float(value), DType.F32)


def _simple(site: Site, a: Args, name: str, kind: Promotion) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op(name, x), kind)


def _unary(torch_name: str, name: str, kind: Promotion) -> None:
    lowers(torch_name)(lambda site, a: _simple(site, a, name, kind))


for _name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf"):
    _unary(_name, _name, FLOAT)
_unary("special_expit", "sigmoid", FLOAT)
_unary("special_erf", "erf", FLOAT)
_unary("special_log1p", "log1p", FLOAT)
_unary("special_expm1", "expm1", FLOAT)
_unary("special_exp2", "exp2", FLOAT)
for _name in ("neg", "abs", "sign", "floor", "ceil", "trunc"):
    _unary(_name, _name, SAME)
_unary("negative", "neg", SAME)
_unary("absolute", "abs", SAME)
_unary("fix", "trunc", SAME)
_unary("sgn", "sign", SAME)


@lowers("round")
def round_(site: Site, a: Args) -> list[Stage]:
    if getattr(a, "decimals", 0):
        raise NotLowered("rounding to decimals")
    return _simple(site, a, "round", SAME)


# ---- two operands --------------------------------------------------------------------------------------------


def scaled(factor: Any, x: Expr, dtype: DType) -> Expr:
    """``factor * x``, nothing for 1."""
    if factor == 1 and not isinstance(factor, Value):
        return x
    return op("mul", number(factor, dtype), x)


def _sum(site: Site, left: Any, right: Any, alpha: Any, sign: str) -> list[Stage]:
    axes, index = space(site.shape())
    dtype = site.common([left, right])
    if dtype is DType.BOOL:
        return [site.store(axes, index, op("logical_or", site.at(left, index, dtype), site.at(right, index, dtype)))]
    body = op(sign, site.at(left, index, dtype), scaled(alpha, site.at(right, index, dtype), dtype))
    return [site.store(axes, index, body)]


@lowers("add")
def add(site: Site, a: Args) -> list[Stage]:
    return _sum(site, a.self, a.other, getattr(a, "alpha", 1), "add")


@lowers("sub", "subtract")
def sub(site: Site, a: Args) -> list[Stage]:
    return _sum(site, a.self, a.other, getattr(a, "alpha", 1), "sub")


@lowers("rsub")
def rsub(site: Site, a: Args) -> list[Stage]:
    return _sum(site, a.other, a.self, getattr(a, "alpha", 1), "sub")


@lowers("mul", "multiply")
def mul(site: Site, a: Args) -> list[Stage]:
    name = "logical_and" if site.dtype() is DType.BOOL else "mul"
    return elementwise(site, [a.self, a.other], lambda x, y: op(name, x, y))


@lowers("div", "divide", "true_divide")
def div(site: Site, a: Args) -> list[Stage]:
    mode = getattr(a, "rounding_mode", None)
    if mode is None:
        return elementwise(site, [a.self, a.other], lambda x, y: op("div", x, y), FLOAT)
    if mode == "floor":
        return elementwise(site, [a.self, a.other], lambda x, y: op("floordiv", x, y))
    if not site.dtype().is_float:
        raise NotLowered("integer division that truncates")
    return elementwise(site, [a.self, a.other], lambda x, y: op("trunc", op("div", x, y)))


def _binary(name: str, torch_names: Sequence[str], first: str = "self", second: str = "other") -> None:
    def rule(site: Site, a: Args) -> list[Stage]:
        return elementwise(site, [getattr(a, first), getattr(a, second)], lambda x, y: op(name, x, y))

    lowers(*torch_names)(rule)


_binary("floordiv", ["floor_divide"])
_binary("remainder", ["remainder"])
_binary("minimum", ["minimum"])
_binary("maximum", ["maximum"])
for _name, _long in (("eq", None), ("ne", "not_equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"),
                     ("ge", "greater_equal")):  # fmt: skip
    _binary(_name, [_name, *([_long] if _long else [])])


def _logical(name: str, torch_name: str) -> None:
    def rule(site: Site, a: Args) -> list[Stage]:
        axes, index = space(site.shape())
        args = [site.cast(site.at(v, index), DType.BOOL) for v in (a.self, a.other)]
        return [site.store(axes, index, op(name, *args))]

    lowers(torch_name)(rule)


_logical("logical_and", "logical_and")
_logical("logical_or", "logical_or")
_logical("ne", "logical_xor")


def _bitwise(name: str, *torch_names: str) -> None:
    def rule(site: Site, a: Args) -> list[Stage]:
        if site.dtype() is not DType.BOOL:
            raise NotLowered("bitwise operations on integers")
        return elementwise(site, [a.self, a.other], lambda x, y: op(name, x, y))

    lowers(*torch_names)(rule)


_bitwise("logical_and", "bitwise_and", "__and__")
_bitwise("logical_or", "bitwise_or", "__or__")
_bitwise("ne", "bitwise_xor", "__xor__")


@lowers("logical_not")
def logical_not(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    return [site.store(axes, index, op("logical_not", site.cast(site.at(a.self, index), DType.BOOL)))]


@lowers("bitwise_not")
def bitwise_not(site: Site, a: Args) -> list[Stage]:
    if site.dtype() is not DType.BOOL:
        raise NotLowered("bitwise operations on integers")
    return elementwise(site, [a.self], lambda x: op("logical_not", x))


@lowers("isnan")
def isnan(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("ne", x, x))


@lowers("isinf")
def isinf(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("eq", op("abs", x), k(math.inf)), FLOAT)


@lowers("isfinite")
def isfinite(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("isfinite", x), FLOAT)


@lowers("where")
def where(site: Site, a: Args) -> list[Stage]:
    if not hasattr(a, "other"):
        raise NotLowered("where without values")
    axes, index = space(site.shape())
    dtype = site.common([a.self, a.other])
    condition = site.cast(site.at(a.condition, index), DType.BOOL)
    return [
        site.store(axes, index, op("where", condition, site.at(a.self, index, dtype), site.at(a.other, index, dtype)))
    ]


@lowers("masked_fill")
def masked_fill(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    dtype = a.self.dtype
    mask = site.cast(site.at(a.mask, index), DType.BOOL)
    return [site.store(axes, index, op("where", mask, site.at(a.value, index, dtype), site.at(a.self, index, dtype)))]


@lowers("pow", "float_power")
def pow_(site: Site, a: Args) -> list[Stage]:
    base, exponent = a.self, a.exponent
    if isinstance(exponent, Value) and exponent.scalar is not None:
        exponent = exponent.scalar
    if isinstance(exponent, bool | int | float):
        return elementwise(site, [base, float(exponent) if isinstance(exponent, float) else exponent],
                           lambda x, _: power(x, exponent, site.dtype()))  # fmt: skip
    if not site.dtype().is_float:
        raise NotLowered("an integer power")
    return elementwise(site, [base, exponent], _general_power)


def power(x: Expr, exponent: float, dtype: DType) -> Expr:
    """``x ** exponent`` for a known exponent, as torch's kernels special-case it."""
    match exponent:
        case 0:
            return number(1, dtype)
        case 1:
            return x
        case 2:
            return op("mul", x, x)
        case 3:
            return op("mul", op("mul", x, x), x)
    if not dtype.is_float:
        raise NotLowered(f"an integer to the power {exponent}")
    match exponent:
        case 0.5:
            return op("sqrt", x)
        case -0.5:
            return op("rsqrt", x)
        case -1:
            return op("div", k(1), x)
        case -2:
            return op("div", k(1), op("mul", x, x))
    if exponent == int(exponent):  # the table's pow needs a base that is not negative
        size = op("pow", op("abs", x), k(exponent))
        return size if int(exponent) % 2 == 0 else op("where", op("lt", x, k(0)), op("neg", size), size)
    return op("where", op("lt", x, k(0)), k(math.nan), op("pow", op("abs", x), k(exponent)))


def _general_power(x: Expr, y: Expr) -> Expr:
    size = op("pow", op("abs", x), y)
    odd = op("ne", op("remainder", y, k(2)), k(0))
    whole = op("eq", op("floor", y), y)
    negative = op("where", whole, op("where", odd, op("neg", size), size), k(math.nan))
    return op("where", op("lt", x, k(0)), negative, size)


@lowers("square")
def square(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("mul", x, x))


@lowers("reciprocal")
def reciprocal(site: Site, a: Args) -> list[Stage]:
    return elementwise(site, [a.self], lambda x: op("div", k(1), x), FLOAT)


@lowers("addcmul")
def addcmul(site: Site, a: Args) -> list[Stage]:
    dtype = site.dtype()
    return elementwise(
        site, [a.self, a.tensor1, a.tensor2], lambda x, y, z: op("add", x, scaled(a.value, op("mul", y, z), dtype))
    )


@lowers("addcdiv")
def addcdiv(site: Site, a: Args) -> list[Stage]:
    dtype = site.dtype()
    return elementwise(
        site,
        [a.self, a.tensor1, a.tensor2],
        lambda x, y, z: op("add", x, scaled(a.value, op("div", y, z), dtype)),
        FLOAT,
    )


@lowers("lerp")
def lerp(site: Site, a: Args) -> list[Stage]:
    def body(x: Expr, y: Expr, w: Expr) -> Expr:
        near = op("add", x, op("mul", w, op("sub", y, x)))
        far = op("sub", y, op("mul", op("sub", y, x), op("sub", k(1), w)))
        return op("where", op("lt", op("abs", w), k(0.5)), near, far)

    return elementwise(site, [a.self, a.end, a.weight], body)


# ---- bounds --------------------------------------------------------------------------------------------------


@lowers("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "relu6")
def clamp(site: Site, a: Args) -> list[Stage]:
    low = getattr(a, "min", getattr(a, "min_val", None))
    high = getattr(a, "max", getattr(a, "max_val", None))
    if {"min", "max", "min_val", "max_val"}.isdisjoint(vars(a)):
        low, high = 0, 6  # relu6

    def body(x: Expr, lo: Expr | None, hi: Expr | None) -> Expr:
        x = op("maximum", x, lo) if lo is not None else x
        return op("minimum", x, hi) if hi is not None else x

    return elementwise(site, [a.self, low, high], body)


@lowers("relu")
def relu(site: Site, a: Args) -> list[Stage]:
    dtype = a.self.dtype
    return elementwise(site, [a.self], lambda x: op("maximum", x, number(0, dtype)))


@lowers("nan_to_num")
def nan_to_num(site: Site, a: Args) -> list[Stage]:
    largest = {DType.F32: 3.4028234663852886e38, DType.F64: 1.7976931348623157e308, DType.BF16: 3.3895313892515355e38,
               DType.F16: 65504.0}.get(site.dtype())  # fmt: skip
    if largest is None:
        raise NotLowered("nan_to_num of integers")
    high = largest if a.posinf is None else a.posinf
    low = -largest if a.neginf is None else a.neginf

    def body(x: Expr) -> Expr:
        x = op("where", op("ne", x, x), k(a.nan or 0.0), x)
        x = op("where", op("eq", x, k(math.inf)), k(high), x)
        return op("where", op("eq", x, k(-math.inf)), k(low), x)

    return elementwise(site, [a.self], body)


# ---- conversions and copies ----------------------------------------------------------------------------------


@lowers("_to_copy", "to", "type_as", "clone", "contiguous", "alias_copy", "detach_copy", "lift_fresh")
def clone(site: Site, a: Args) -> list[Stage]:
    axes, index = space(site.shape())
    return [site.store(axes, index, site.at(a.self, index))]


@lowers("copy")
def copy(site: Site, a: Args) -> list[Piece]:
    axes, index = space(site.shape())
    stage = site.store(axes, index, site.at(a.src, index))
    # what is overwritten matters for its layout only
    calls = (*site.empty("_empty"), *site.call("aten.copy.default", [Ref("_empty"), a.src], (site.out(),)))
    return [Piece((stage,), calls)]
