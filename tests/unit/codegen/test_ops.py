"""The table of Triton texts against the table of the IR: the same names, and the same meaning on hard values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mtmc.codegen.triton.ops import DOUBLE_TEXT, FLOAT_TEXT, HELPERS, INTEGER_TEXT, bare, helper_for, render_op
from mtmc.errors import CodegenError
from mtmc.ir.expr import Cast, Expr, Load, Op, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.interp import run as interpret
from mtmc.ir.ops import ELEMENTWISE
from mtmc.ir.program import Buffer, Kernel, Program, Role, Stages, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from tests.interpreted import InterpreterProcess

MISSING = {
    DType.F64: {"tanh", "expm1", "log1p", "pow2_scale", "pow", "floordiv", "remainder"},  # helpers made for float32
    DType.I64: {"isnan", "isfinite"},
}
DOMAIN = {
    "log": lambda x, y: (np.abs(x), y),
    "log2": lambda x, y: (np.abs(x), y),
    "log1p": lambda x, y: (np.abs(x) - 0.75, y),
    "sqrt": lambda x, y: (np.abs(x), y),
    "rsqrt": lambda x, y: (np.abs(x), y),
    "sin": lambda x, y: (np.clip(x, -1e4, 1e4), y),
    "cos": lambda x, y: (np.clip(x, -1e4, 1e4), y),
    "pow": lambda x, y: (np.clip(np.abs(x), 1e-3, 1e3), np.clip(y, -2.5, 2.5)),  # lowering keeps the base positive
    "floordiv": lambda x, y: (np.clip(x, -1e6, 1e6), np.sign(y) * np.clip(np.abs(y), 0.37, 1e6)),
    "remainder": lambda x, y: (np.clip(x, -1e6, 1e6), np.sign(y) * np.clip(np.abs(y), 0.37, 1e6)),
}
"""Where an operation is promised: outside, PyTorch's own kernels differ from one another too."""
ULPS = {"pow": 32, "exp2": 4, "sigmoid": 4, "tanh": 4, "expm1": 4, "log1p": 4}


def floats() -> tuple[np.ndarray, np.ndarray]:
    """Ordinary, tiny, large and special values, exact in float32, both signs."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1.0, 1.0], (2, 192))
    size = np.concatenate(
        [rng.normal(0, 3, (2, 64)), 10 ** rng.uniform(-8, -1, (2, 64)), 10 ** rng.uniform(1, 30, (2, 64))], 1
    )
    x, y = (sign * size).astype(np.float32)
    halves = np.arange(-16, 16, dtype=np.float32) / 2
    return np.concatenate([x, halves, [0.0, 1.0, -1.0]]), np.concatenate([y, halves[::-1] + 0.25, [1.0, -1.0, 2.0]])


def program_of(op: str, dtype: DType, count: int) -> Program:
    """``z = op(x, y, ...)`` over one axis; a condition comes first where the operation wants one."""
    i = Axis("i", Index.of(count))
    x, y = Load("x", (Index.of(i),)), Load("y", (Index.of(i),))
    arity = ELEMENTWISE[op].arity
    args: tuple[Expr, ...] = (Op("gt", (x, y)), x, y) if op == "where" else (x, y)[:arity]
    if op.startswith("logical"):
        args = tuple(Cast(DType.BOOL, arg) for arg in args)
    body = Op(op, args)
    result = {"bool": DType.BOOL, "float": dtype if dtype.is_float else DType.F32}.get(ELEMENTWISE[op].result, dtype)
    shape = (Index.of(count),)
    inputs = [replace(Buffer.temp(n, dtype, shape), role=Role.INPUT, source=str(k)) for k, n in enumerate("xy")]
    kernel = Kernel(
        "k0", Stages((Stage((i,), "z", (Index.of(i),), body),)), op, impl=Tile(Schedule("pointwise", (64,)))
    )
    return Program((*inputs, Buffer.temp("z", result, shape)), (kernel,), ("z",))


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterProcess]:
    process = InterpreterProcess(tmp_path_factory.mktemp("ops"))
    yield process
    process.close()


def test_the_tables_have_the_same_names() -> None:
    names = set(ELEMENTWISE)
    assert set(FLOAT_TEXT) == names
    assert set(DOUBLE_TEXT) == names - MISSING[DType.F64]
    assert set(INTEGER_TEXT) == {n for n in names if ELEMENTWISE[n].result != "float"} - MISSING[DType.I64]


def test_a_missing_operation_says_so() -> None:
    with pytest.raises(CodegenError, match="no exact 'tanh' on float64; the kernel stays with the library"):
        render_op("tanh", ["x"], DType.F64)


def test_every_helper_exists() -> None:
    found = {helper_for(name, DType.F32) for name in ELEMENTWISE} - {None}
    assert found <= set(HELPERS) and helper_for("remainder", DType.I64) is None


@pytest.mark.parametrize(("dtype", "op"), [(dtype, op) for dtype, ops in MISSING.items() for op in sorted(ops)])
def test_what_has_no_exact_text_is_refused(dtype: DType, op: str) -> None:
    with pytest.raises(CodegenError, match=f"no exact '{op}'"):
        render_op(op, ["x", "y", "z"][: ELEMENTWISE[op].arity], dtype)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [(dtype, op) for dtype in (DType.F32, DType.F64) for op in ELEMENTWISE if op not in MISSING.get(dtype, ())],
)
def test_floats(dtype: DType, op: str, interpreter: InterpreterProcess) -> None:
    x, y = DOMAIN.get(op, lambda x, y: (x, y))(*floats())
    x, y = x.astype(np.float32), y.astype(np.float32)
    program = program_of(op, dtype, len(x))
    _, (found,) = interpreter.run(program, {"x": x, "y": y})
    wanted = interpret(program, {"x": x, "y": y})["z"]
    if wanted.dtype == bool:
        np.testing.assert_array_equal(found, wanted)
        return
    with np.errstate(over="ignore"):
        finite = np.isfinite(wanted.astype(np.float32 if dtype is DType.F32 else np.float64))
    ulp = (2.0**-23 if dtype is DType.F32 else 2.0**-52) * ULPS.get(op, 2)
    # the interpreter's fma rounds twice, which the card's does not: a remainder is then right to an ulp of x
    slack = ulp * np.abs(x[finite]) if op == "remainder" else 1e-37
    np.testing.assert_array_less(np.abs(found[finite] - wanted[finite]), ulp * np.abs(wanted[finite]) + slack + 1e-37)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found[~finite], wanted.astype(np.float32)[~finite], err_msg=op)


@pytest.mark.parametrize("op", ["maximum", "minimum", "abs", "floor", "round", "isnan", "isfinite", "relu"])
def test_special_values(op: str, interpreter: InterpreterProcess) -> None:
    """NaN goes through, infinities stay (the sign of NaN is 0 in PyTorch, and NaN in numpy)."""
    name = "maximum" if op == "relu" else op
    x = np.array([np.nan, np.inf, -np.inf, 0.0, np.nan, 1.0], dtype=np.float32)
    y = np.zeros(6, np.float32) if op == "relu" else np.array([1.0, np.nan, 2.0, -np.inf, np.nan, np.inf], np.float32)
    program = program_of(name, DType.F32, 6)
    _, (found,) = interpreter.run(program, {"x": x, "y": y})
    wanted = interpret(program, {"x": x, "y": y})["z"]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("op", [*INTEGER_TEXT, "div", "exp", "sqrt"])
@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.U8])
def test_integers(op: str, dtype: DType, interpreter: InterpreterProcess) -> None:
    rng = np.random.default_rng(0)
    low, high = (0, 200) if dtype is DType.U8 else (-(2**20), 2**20)
    x = np.concatenate([rng.integers(low, high, 200), np.arange(0, 9)])
    y = np.concatenate(
        [rng.integers(1, 9, 200) * (1 if dtype is DType.U8 else rng.choice([-1, 1], 200)), np.full(9, 3)]
    )
    if op in ("exp", "sqrt"):
        x = np.abs(x) % 16
    program = program_of(op, dtype, len(x))
    _, (found,) = interpreter.run(program, {"x": x, "y": y})
    wanted = interpret(program, {"x": x, "y": y})["z"]
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=1e-6, err_msg=op)


@pytest.mark.parametrize(
    ("text", "inner"), [("(a + b)", "a + b"), ("(a) + (b)", "(a) + (b)"), ("f(a)", "f(a)"), ("x", "x")]
)
def test_bare(text: str, inner: str) -> None:
    assert bare(text) == inner


def test_parentheses_only_where_they_matter() -> None:
    def binary(name: str, left: str, right: str) -> str:
        return render_op(name, [left, right], DType.F32)

    assert binary("add", binary("mul", "a", "b"), binary("div", "c", "d")) == "(a * b + c / d)"
    assert binary("sub", "a", binary("sub", "b", "c")) == "(a - (b - c))"
    assert binary("mul", binary("add", "a", "b"), "c") == "((a + b) * c)"
    assert binary("div", "a", binary("mul", "b", "c")) == "(a / (b * c))"
    assert binary("gt", binary("add", "a", "b"), "0.0") == "(a + b > 0.0)"
    assert binary("logical_and", binary("gt", "a", "b"), "c") == "((a > b) & c)"
    assert binary("mul", render_op("neg", ["a"], DType.F32), "b") == "((-a) * b)"
