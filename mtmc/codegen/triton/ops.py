"""Elementwise operations as Triton text. The names are those of :data:`mtmc.ir.ops.ELEMENTWISE`.

Triton has no tanh, expm1 or log1p that the interpreter can run too, so those are short ``@triton.jit`` helpers that
the rendered file carries; each stays accurate near zero, where the plain formula loses all its digits.
"""

from __future__ import annotations

from collections.abc import Callable

from mtmc.errors import CodegenError
from mtmc.ir.types import DType

TL_DTYPE = {
    DType.F64: "tl.float64", DType.F32: "tl.float32", DType.BF16: "tl.bfloat16", DType.F16: "tl.float16",
    DType.I64: "tl.int64", DType.I32: "tl.int32", DType.I16: "tl.int16", DType.I8: "tl.int8",
    DType.U8: "tl.uint8", DType.BOOL: "tl.int1",
}  # fmt: skip

POINTER_TYPE = {
    DType.F64: "*fp64", DType.F32: "*fp32", DType.BF16: "*bf16", DType.F16: "*fp16", DType.I64: "*i64",
    DType.I32: "*i32", DType.I16: "*i16", DType.I8: "*i8", DType.U8: "*u8", DType.BOOL: "*i1",
}  # fmt: skip

HELPERS = {
    "_tanh": '''
@triton.jit
def _tanh(x):
    """tanh to 2 ulp: an odd polynomial (Cephes) near zero, where 1 - 2 / (exp(2x) + 1) would cancel."""
    z = x * x
    p = (((-5.70498872745e-3 * z + 2.06390887954e-2) * z - 5.37397155531e-2) * z + 1.33314422036e-1) * z
    near = (p - 3.33332819422e-1) * z * x + x
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))
''',
    "_expm1": '''
@triton.jit
def _expm1(x):
    """exp(x) - 1, by its series near zero."""
    p = 1.0 / 720 + x * (1.0 / 5040 + x * (1.0 / 40320))
    p = 0.5 + x * (1.0 / 6 + x * (1.0 / 24 + x * (1.0 / 120 + x * p)))
    return tl.where(tl.abs(x) < 0.5, x + x * x * p, tl.exp(x) - 1.0)
''',
    "_log1p": '''
@triton.jit
def _log1p(x):
    """log(1 + x), by the series of 2 atanh(x / (2 + x)) near zero."""
    s = x / (2.0 + x)
    z = s * s
    near = 2.0 * s * (1.0 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z * (1.0 / 11))))))
    return tl.where(tl.abs(x) < 0.5, near, tl.log(1.0 + x))
''',
    "_pow2_scale": '''
@triton.jit
def _pow2_scale(x):
    """The power of two that brings a magnitude into [2**14, 2**15); 1 for zero and non-finite values."""
    exponent = (x.to(tl.int32, bitcast=True) >> 23) - 127
    biased = tl.minimum(tl.maximum(127 + 14 - exponent, 1), 253)
    scale = (biased << 23).to(tl.float32, bitcast=True)
    return tl.where((x > 0) & (x < float("inf")), scale, 1.0)
''',
    "_round_tf32": '''
@triton.jit
def _round_tf32(x):
    """Rounds float32 to TF32's 11 significant bits, to nearest: tl.dot alone would truncate."""
    bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
''',
    "_pow": '''
@triton.jit
def _pow(x, y):
    """x ** y for x >= 0 and a fractional y."""
    return tl.where(x == 0, tl.where(y == 0, 1.0, tl.where(y > 0, 0.0, float("inf"))), tl.exp2(y * tl.log2(x)))
''',
    "_round": '''
@triton.jit
def _round(x):
    """To the nearest whole number, ties to even."""
    below = tl.floor(x)
    rest = x - below
    odd = below != 2.0 * tl.floor(0.5 * below)
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1.0, below)
''',
    "_floordiv": '''
@triton.jit
def _floordiv(a, b):
    """floor(a / b) of the exact quotient: a rounded one may reach the next whole number."""
    q = tl.floor(tl.div_rn(a, b))
    rest = tl.fma(-q, b, a)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), q - 1.0, q)
''',
    "_remainder": '''
@triton.jit
def _remainder(a, b):
    """a modulo b, with the sign of b; exact for quotients below 2**24."""
    rest = tl.fma(-tl.floor(tl.div_rn(a, b)), b, a)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "_max": """
@triton.jit
def _max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_min": """
@triton.jit
def _min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "_mul": """
@triton.jit
def _mul(a, b):
    return a * b
""",
    "_argmax": '''
@triton.jit
def _argmax(a, i, b, j):
    """The larger value and its position; NaN is largest, the first of equals wins (as torch.argmax)."""
    a_nan, b_nan = a != a, b != b
    same = (a == b) | (a_nan & b_nan)
    left = tl.where(same, i < j, (a > b) | (a_nan & (b == b)))
    return tl.where(left, a, b), tl.where(left, i, j)
''',
    "_argmin": '''
@triton.jit
def _argmin(a, i, b, j):
    """The smaller value and its position; NaN is smallest, the first of equals wins (as torch.argmin)."""
    a_nan, b_nan = a != a, b != b
    same = (a == b) | (a_nan & b_nan)
    left = tl.where(same, i < j, (a < b) | (a_nan & (b == b)))
    return tl.where(left, a, b), tl.where(left, i, j)
''',
    "_moments": '''
@triton.jit
def _moments(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    """Mean, sum of squared deviations and count of two sets together (Chan, Golub, LeVeque 1979)."""
    n = n_a + n_b
    share = tl.where(n > 0, n_b / tl.maximum(n, 1.0), 0.0)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n
''',
    "_maxsumexp": '''
@triton.jit
def _maxsumexp(max_a, sum_a, max_b, sum_b):
    """Running maximum and sum of exp(x - maximum) of two sets together (online softmax)."""
    top = tl.maximum(max_a, max_b, propagate_nan=tl.PropagateNan.ALL)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return top, sum_a * tl.exp(max_a - safe) + sum_b * tl.exp(max_b - safe)
''',
}
"""Helper functions by name; a rendered file carries those that it uses."""

_USES = {name: f"_{name}" for name in ("tanh", "expm1", "log1p", "pow2_scale", "pow", "round", "floordiv", "remainder")}
"""Operations on floats whose text calls a helper. These are made for float32."""


def helper_for(op: str, kind: DType) -> str | None:
    """Name of the helper that an operation's text calls where its arguments compute in ``kind``."""
    return _USES.get(op) if kind.is_float else None


def bare(text: str) -> str:
    """Without the parentheses around the whole."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, char in enumerate(text):
            depth += (char == "(") - (char == ")")
            if depth == 0 and position < len(text) - 1:
                return text
        return text[1:-1]
    return text


def _binary(sign: str, left: str = "", right: str = "") -> Callable[[list[str]], str]:
    """``left`` and ``right``: operators that bind as Python would without parentheses on that side."""
    return lambda args: f"({_loose(args[0], left)} {sign} {_loose(args[1], right)})"


def _loose(text: str, operators: str) -> str:
    """Without its parentheses where nothing but these operators stands between them."""
    inner, depth = "", 0
    for char in bare(text):
        depth += (char == "(") - (char == ")")
        inner += char if depth == 0 else ""
    found = inner.split()[1::2]
    return bare(text) if found and set(found) <= set(operators) else text


def _call(function: str) -> Callable[[list[str]], str]:
    return lambda args: f"{function}({', '.join(map(bare, args))})"


FLOAT_TEXT: dict[str, Callable[[list[str]], str]] = {
    "add": _binary("+", "+-*/", "*/"),
    "sub": _binary("-", "+-*/", "*/"),
    "mul": _binary("*", "*/"),
    "div": _binary("/", "*/"),
    "floordiv": _call("_floordiv"),
    "remainder": _call("_remainder"),
    "neg": lambda a: f"(-{a[0]})",
    "abs": _call("tl.abs"),
    "sign": lambda a: f"(({a[0]} > 0).to(tl.float32) - ({a[0]} < 0).to(tl.float32))",
    "minimum": lambda a: f"tl.minimum({bare(a[0])}, {bare(a[1])}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": lambda a: f"tl.maximum({bare(a[0])}, {bare(a[1])}, propagate_nan=tl.PropagateNan.ALL)",
    "where": _call("tl.where"),
    "exp": _call("tl.exp"),
    "exp2": _call("tl.exp2"),
    "expm1": _call("_expm1"),
    "log": _call("tl.log"),
    "log2": _call("tl.log2"),
    "log1p": _call("_log1p"),
    "sqrt": _call("tl.sqrt_rn"),
    "rsqrt": lambda a: f"(1.0 / tl.sqrt_rn({bare(a[0])}))",
    "sin": _call("tl.sin"),
    "cos": _call("tl.cos"),
    "tanh": _call("_tanh"),
    "sigmoid": lambda a: f"(1.0 / (1.0 + tl.exp(-{a[0]})))",
    "erf": _call("tl.erf"),
    "pow": _call("_pow"),
    "floor": _call("tl.floor"),
    "ceil": _call("tl.ceil"),
    "trunc": lambda a: f"tl.where({a[0]} < 0, tl.ceil({a[0]}), tl.floor({a[0]}))",
    "round": _call("_round"),
    "eq": _binary("==", "+-*/", "+-*/"),
    "ne": _binary("!=", "+-*/", "+-*/"),
    "lt": _binary("<", "+-*/", "+-*/"),
    "le": _binary("<=", "+-*/", "+-*/"),
    "gt": _binary(">", "+-*/", "+-*/"),
    "ge": _binary(">=", "+-*/", "+-*/"),
    "logical_and": _binary("&"),
    "logical_or": _binary("|"),
    "logical_not": lambda a: f"({a[0]} == 0)",
    "isnan": lambda a: f"({a[0]} != {a[0]})",
    "isfinite": lambda a: f'(tl.abs({bare(a[0])}) < float("inf"))',
    "pow2_scale": _call("_pow2_scale"),
}

DOUBLE_TEXT: dict[str, Callable[[list[str]], str]] = {
    **{name: text for name, text in FLOAT_TEXT.items() if name not in _USES},
    "round": FLOAT_TEXT["round"],
    "sqrt": _call("tl.sqrt"),
    "rsqrt": lambda a: f"(1.0 / tl.sqrt({bare(a[0])}))",
}
"""float64, where ``tl.sqrt`` is exact and most helpers are not."""

INTEGER_TEXT: dict[str, Callable[[list[str]], str]] = {
    **{name: FLOAT_TEXT[name] for name in ("add", "sub", "mul", "neg", "abs", "where", "eq", "ne", "lt", "le")},
    **{name: FLOAT_TEXT[name] for name in ("gt", "ge", "logical_and", "logical_or", "logical_not")},
    "minimum": _call("tl.minimum"),
    "maximum": _call("tl.maximum"),
    "remainder": lambda a: f"(({a[0]} % {a[1]} + {a[1]}) % {a[1]})",
    "floordiv": lambda a: f"(({a[0]} - (({a[0]} % {a[1]} + {a[1]}) % {a[1]})) // {a[1]})",
    "sign": lambda a: f"(({a[0]} > 0).to(tl.int32) - ({a[0]} < 0).to(tl.int32))",
    "floor": lambda a: a[0],
    "ceil": lambda a: a[0],
    "trunc": lambda a: a[0],
    "round": lambda a: a[0],
}


def render_op(op: str, args: list[str], kind: DType) -> str:
    """Text of one operation whose arguments compute in ``kind``."""
    table = DOUBLE_TEXT if kind is DType.F64 else FLOAT_TEXT if kind.is_float else INTEGER_TEXT
    if op not in table:
        raise CodegenError(f"Triton has no exact '{op}' on {kind}; the kernel stays with the library")
    return table[op](args)
