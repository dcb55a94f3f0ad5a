from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mtmc.ir.program import Stages
from tests.cpu.capture.agreement import Fn, assert_agrees

X = torch.linspace(-4, 4, 60).reshape(3, 20)
Y = torch.linspace(0.2, 3, 20)

UNARY = {
    "relu": F.relu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "selu": F.selu,
    "elu": lambda x: F.elu(x, 0.7),
    "celu": lambda x: F.celu(x, 1.3),
    "silu": F.silu,
    "mish": F.mish,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softplus": lambda x: F.softplus(x, 2, 3),
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "tanhshrink": F.tanhshrink,
    "threshold": lambda x: F.threshold(x, 0.5, -2.0),
    "clamp": lambda x: x.clamp(-1, 1.5),
    "clamp_min": lambda x: x.clamp(min=0),
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "pow5": lambda x: x**5,
    "pow_neg": lambda x: x**-2,
    "pow_half": lambda x: x**0.5,
    "pow_frac": lambda x: x**1.7,
    "abs": torch.abs,
    "neg": lambda x: -x,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "log": lambda x: x.abs().log(),
    "log1p": lambda x: x.abs().log1p(),
    "sin": torch.sin,
    "floor": torch.floor,
    "round": torch.round,
    "sign": torch.sign,
    "rsub": lambda x: 1 - x,
    "add_scalar": lambda x: x + 2,
    "sub_alpha": lambda x: torch.sub(x, x * x, alpha=3),
    "floor_divide": lambda x: x // 0.7,
    "remainder": lambda x: x % 0.7,
    "reciprocal": lambda x: 1 / x,
    "isnan": lambda x: torch.isnan(x.sqrt()),
    "nan_to_num": lambda x: torch.nan_to_num(x.sqrt(), 5.0),
    "half": lambda x: x.half(),
    "int": lambda x: x.to(torch.int64),
    "bool": lambda x: (x > 0) & ~(x > 2),
    "masked_fill": lambda x: x.masked_fill(x > 1, float("-inf")),
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "glu": F.glu,
    "square": torch.square,
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "dropout0": lambda x: F.dropout(x, 0.0) + 1,
}


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    program = assert_agrees(Fn(UNARY[name]), X)
    assert all(isinstance(kernel.spec, Stages) and kernel.calls for kernel in program.kernels)


BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "sub": lambda x, y: x - y,
    "div": lambda x, y: x / y,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "min_other": torch.min,
    "max_other": torch.max,
    "eq": torch.eq,
    "lt": torch.lt,
    "ge": torch.ge,
    "pow": lambda x, y: x.abs() ** y,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "prelu": lambda x, y: F.prelu(x, y),
    "logical": lambda x, y: torch.logical_and(x > 0, y > 1) | torch.logical_xor(x > 1, y > 2),
    "clamp_tensor": lambda x, y: x.clamp(max=y),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    assert_agrees(Fn(BINARY[name]), X, Y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    x, y = X.to(dtype), Y.to(dtype)
    assert_agrees(Fn(lambda a, b: F.gelu(a * b + 0.1)), x, y)
    assert_agrees(Fn(lambda a, b: (a.float() * b).to(a.dtype)), x, y)


def test_promotion() -> None:
    i = torch.arange(-30, 30).reshape(3, 20)
    assert_agrees(Fn(lambda i: i + 1.5), i)
    assert_agrees(Fn(lambda i: i / 2), i)
    assert_agrees(Fn(lambda i: i * 3 - i.to(torch.int32)), i)
    assert_agrees(Fn(lambda i, x: torch.sigmoid(i) + x.double()), i, X)
    assert_agrees(Fn(lambda i: (i > 3) * i + (i < 0)), i)


def test_known_constant_is_a_number() -> None:
    program = assert_agrees(Fn(lambda x: torch.min(x, torch.tensor(0.5))), X)
    assert program.kernels[0].reads == ("args_0",)


def test_bitwise_on_integers_stays_library() -> None:
    assert_agrees(Fn(lambda i: i & 3), torch.arange(10), opaque=1)
