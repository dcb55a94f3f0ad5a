"""Rendered matmul kernels: right in Triton's interpreter, and built for sm_90 without spills."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtmc.codegen.triton.emit import FileParts, identifier
from mtmc.codegen.triton.kernel import RenderedKernel
from mtmc.codegen.triton.matmul import render
from mtmc.codegen.triton.ops import HELPERS
from mtmc.ir.expr import Cast, Const, Contract, Expr, Load, Op, Stage
from mtmc.ir.forms.matmul import MatmulForm
from mtmc.ir.index import Axis, Index
from mtmc.ir.interp import run as interpret
from mtmc.ir.program import Buffer, Kernel, Program, Role, Stages, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from mtmc.verify import interpreter as triton_interpreter

HEADER = "import torch\nimport triton\nimport triton.language as tl\n"


# ---- programs -------------------------------------------------------------------------------------------------


def axis(name: str, extent: int) -> Axis:
    return Axis(name, Index.of(extent))


def at(buffer: str, *index: Any, **more: Any) -> Load:
    return Load(buffer, tuple(Index.of(i) for i in index), **more)


def buffer(name: str, dtype: DType, *shape: int, role: Role = Role.INPUT, strides: tuple[int, ...] = ()) -> Buffer:
    made = replace(Buffer.temp(name, dtype, tuple(Index.of(s) for s in shape)), role=role)
    return replace(made, strides=tuple(Index.of(s) for s in strides)) if strides else made


def program_of(
    buffers: list[Buffer], stages: list[Stage], schedule: Schedule, local: tuple[str, ...] = (), **kernel: Any
) -> Program:
    made = Kernel("k0", Stages(tuple(stages), local), "matmul", impl=Tile(schedule), lines=(7,), **kernel)
    return Program(tuple(buffers), (made,), (stages[-1].target,))


def plain(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    schedule: Schedule,
    out: DType | None = None,
    b_rows: str = "n",
    a_rows: str = "m",
) -> Program:
    """c[m, n] = sum_k a b; the operands stored with ``a_rows`` and ``b_rows`` as their outer axis."""
    i, j, r = axis("i", m), axis("j", n), axis("r", k)
    a, b = (at("a", i, r) if a_rows == "m" else at("a", r, i)), (at("b", j, r) if b_rows == "n" else at("b", r, j))
    buffers = [
        buffer("a", dtype, *((m, k) if a_rows == "m" else (k, m))),
        buffer("b", dtype, *((n, k) if b_rows == "n" else (k, n))),
        buffer("c", out or dtype, m, n, role=Role.TEMP),
    ]
    return program_of(buffers, [Stage((i, j), "c", (Index.of(i), Index.of(j)), Contract((r,), ((a, b),)))], schedule)


def split(m: int, n: int, k: int, schedule: Schedule) -> Program:
    """A fp32-accurate product of operands that were split into two fp16 parts each, with scales per row and column."""
    i, j, r = axis("i", m), axis("j", n), axis("r", k)
    hi_a, lo_a, hi_b, lo_b = at("hi_a", i, r), at("lo_a", i, r), at("hi_b", j, r), at("lo_b", j, r)
    big, corrections = Contract((r,), ((hi_a, hi_b),)), Contract((r,), ((lo_a, hi_b), (hi_a, lo_b)))
    total: Expr = Op("add", (big, Op("mul", (corrections, Const(2.0**-11, DType.F32)))))
    total = Op("mul", (Op("mul", (total, at("inv_a", i))), at("inv_b", j)))
    buffers = [buffer(name, DType.F16, m, k) for name in ("hi_a", "lo_a")]
    buffers += [buffer(name, DType.F16, n, k) for name in ("hi_b", "lo_b")]
    buffers += [
        buffer("inv_a", DType.F32, m),
        buffer("inv_b", DType.F32, n),
        buffer("c", DType.F32, m, n, role=Role.TEMP),
    ]
    return program_of(buffers, [Stage((i, j), "c", (Index.of(i), Index.of(j)), total)], schedule)


# ---- running ----------------------------------------------------------------------------------------------------


def rendered(program: Program) -> tuple[RenderedKernel, str]:
    """The kernel and the text of a module that defines it and ``launch(**buffers)``."""
    parts = FileParts.new()
    (kernel,) = program.kernels
    made = render(program, kernel, MatmulForm.match(program, kernel), parts)
    names = [identifier(b.name) for b in program.buffers]
    text = HEADER + "".join(f"{line}\n" for line in parts.setup) + "".join(HELPERS[name] for name in parts.helpers)
    text += f"\n\n{made.text}\n\ndef launch({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in made.launch)
    return made, text


def load_module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    triton_interpreter.repair()


def run_interpreted(path: str, arrays: dict[str, tuple[np.ndarray, str, tuple[int, ...]]]) -> dict[str, np.ndarray]:
    """Runs ``launch`` on CPU tensors; arrays come with a torch dtype and the strides of the buffer."""
    import torch

    tensors = {}
    for name, (value, dtype, strides) in arrays.items():
        kind = getattr(torch, dtype)
        size = 1 + sum((extent - 1) * stride for extent, stride in zip(value.shape, strides, strict=True))
        tensors[name] = torch.empty(size, dtype=kind).as_strided(value.shape, strides).copy_(torch.from_numpy(value))
    load_module(path).launch(**tensors)
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def compile_sm90(path: str, signature: dict[str, Any]) -> dict[str, Any]:
    """Builds one kernel for sm_90; PTX, shared bytes, registers and spilled (local) bytes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(load_module(path), signature["function"])
    types = dict(signature["args"]) | {name: "constexpr" for name, _ in signature["constexprs"]}
    attrs = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in signature["aligned"]}
    source = ASTSource(function, types, constexprs=dict(signature["constexprs"]), attrs=attrs)
    options = {"num_warps": signature["num_warps"], "num_stages": signature["num_stages"]}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    cubin = Path(path).with_suffix(".cubin")
    cubin.write_bytes(built.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([str(tool), "-res-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+)", usage), re.search(r"STACK:(\d+)", usage)
    assert registers and stack, usage
    return {
        "ptx": built.asm["ptx"],
        "ttgir": built.asm["ttgir"],
        "shared": built.metadata.shared,
        "registers": int(registers[1]),
        "spilled": int(stack[1]),
    }


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=start_interpreter) as pool:
        yield pool


@pytest.fixture(scope="module")
def compiler() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def storage(value: np.ndarray, dtype: DType) -> np.ndarray:
    """Rounded to what the buffer holds; bfloat16 as float32."""
    if dtype is DType.BF16:
        bits = value.astype(np.float32).view(np.uint32)
        return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)
    return value.astype({DType.F16: np.float16, DType.F32: np.float32, DType.F64: np.float64}[dtype])


def check(
    program: Program, pool: ProcessPoolExecutor, folder: Path, tolerance: float, **fixed: np.ndarray
) -> np.ndarray:
    """Runs the rendered kernel and the IR interpreter on the same random values; the largest error over the scale."""
    _, text = rendered(program)
    path = folder / "kernel.py"
    path.write_text(text)
    rng = np.random.default_rng(0)
    arrays, values = {}, {}
    for b in program.buffers:
        shape = tuple(s.evaluate({}) for s in b.shape)
        value = storage(rng.standard_normal(shape), b.dtype)
        value = storage(fixed[b.name], b.dtype) if b.name in fixed else value
        if b.role is Role.TEMP:
            value = np.full_like(value, 7.0)
        else:
            values[b.name] = value
        arrays[identifier(b.name)] = (value, b.dtype.value, tuple(s.evaluate({}) for s in b.strides))
    wanted = interpret(program, values)
    got = pool.submit(run_interpreted, str(path), arrays).result()
    for name in program.outputs:
        scale = np.abs(wanted[name]).max()
        error = np.abs(got[identifier(name)] - wanted[name]).max() / scale
        assert error <= tolerance, f"{name}: error {error:.2e}\n{text}"
    return got[identifier(program.outputs[0])]


SMALL = Schedule("matmul", (16, 32, 16), warps=4, stages=2, group=2)
EPS = {DType.F16: 1e-3, DType.BF16: 8e-3, DType.F32: 2e-6, DType.F64: 1e-14}


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
@pytest.mark.parametrize(("a_rows", "b_rows"), [("m", "n"), ("m", "k"), ("k", "n")])
def test_product(dtype: DType, a_rows: str, b_rows: str, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    check(plain(32, 64, 48, dtype, SMALL, b_rows=b_rows, a_rows=a_rows), interpreter, tmp_path, EPS[dtype])


@pytest.mark.parametrize(("m", "n", "k"), [(33, 70, 21), (5, 3, 100), (48, 32, 17), (16, 40, 16)])
@pytest.mark.parametrize("persistent", [False, True])
def test_tails(m: int, n: int, k: int, persistent: bool, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    check(plain(m, n, k, DType.F32, replace(SMALL, persistent=persistent)), interpreter, tmp_path, EPS[DType.F32])


@pytest.mark.parametrize("descriptors", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_split(descriptors: bool, persistent: bool, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    schedule = replace(SMALL, descriptors=descriptors, persistent=persistent)
    check(split(40, 70, 40, schedule), interpreter, tmp_path, 2e-6)


@pytest.mark.parametrize(("a_rows", "b_rows"), [("m", "k"), ("k", "n"), ("k", "k")])
def test_descriptors_of_transposed_operands(
    a_rows: str, b_rows: str, interpreter: ProcessPoolExecutor, tmp_path: Path
) -> None:
    made = plain(40, 72, 24, DType.F16, replace(SMALL, descriptors=True), a_rows=a_rows, b_rows=b_rows)
    check(made, interpreter, tmp_path, EPS[DType.F16])


def batched(p: int, m: int, n: int, k: int, dtype: DType, schedule: Schedule) -> Program:
    """c[p, m, n] = sum_k a[p, m, k] b[p, k, n]."""
    q, i, j, r = axis("p", p), axis("i", m), axis("j", n), axis("r", k)
    product = Contract((r,), ((at("a", q, i, r), at("b", q, r, j)),))
    buffers = [buffer("a", dtype, p, m, k), buffer("b", dtype, p, k, n), buffer("c", dtype, p, m, n, role=Role.TEMP)]
    return program_of(buffers, [Stage((q, i, j), "c", tuple(map(Index.of, (q, i, j))), product)], schedule)


@pytest.mark.parametrize("descriptors", [False, True])
def test_batched(descriptors: bool, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    made = batched(3, 24, 40, 24, DType.F16, replace(SMALL, descriptors=descriptors))
    check(made, interpreter, tmp_path, EPS[DType.F16])


def test_batched_transposed_with_epilogue(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    """A 4-d product with two batch axes, a prologue on one side, bias and gelu after it, and a second result."""
    p, q, i, j, r = axis("p", 2), axis("q", 3), axis("i", 20), axis("j", 33), axis("r", 24)
    a = Op("maximum", (at("a", p, q, i, r), Const(0.0, DType.F32)))
    product = Contract((r,), ((a, at("b", p, r, q, j)),))
    place = tuple(map(Index.of, (p, q, i, j)))
    y = at("y", p, q, i, j)
    half, one = Const(0.5, DType.F32), Const(1.0, DType.F32)
    erf = Op("erf", (Op("mul", (y, Const(0.5**0.5, DType.F32))),))
    gelu = Op("mul", (Op("mul", (y, half)), Op("add", (erf, one))))
    stages = [
        Stage((p, q, i, j), "y", place, Op("add", (product, at("bias", j)))),
        Stage((p, q, i, j), "z", place, gelu),
    ]
    buffers = [
        buffer("a", DType.F32, 2, 3, 20, 24), buffer("b", DType.F32, 2, 24, 3, 33), buffer("bias", DType.F32, 33),
        buffer("y", DType.F32, 2, 3, 20, 33, role=Role.TEMP), buffer("z", DType.F32, 2, 3, 20, 33, role=Role.TEMP),
    ]  # fmt: skip
    program = program_of(buffers, stages, SMALL)
    check(replace(program, outputs=("y", "z")), interpreter, tmp_path, 2e-6)
    check(program_of(buffers, stages, SMALL, local=("y",)), interpreter, tmp_path, 2e-6)


def test_pointwise_convolution(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    """1x1 convolution on NCHW, as out[n, h, w, o] = sum_c x[n, c, h, w] w[o, c] stored through the map of NCHW."""
    s, h, w, o, c = axis("s", 3), axis("h", 5), axis("w", 8), axis("o", 20), axis("c", 12)
    product = Contract((c,), ((at("x", s, c, h, w), at("weight", o, c)),))
    stage = Stage((s, o, h, w), "y", tuple(map(Index.of, (s, o, h, w))), product)
    buffers = [
        buffer("x", DType.F32, 3, 12, 5, 8),
        buffer("weight", DType.F32, 20, 12),
        buffer("y", DType.F32, 3, 20, 5, 8, role=Role.TEMP),
    ]
    check(program_of(buffers, [stage], SMALL), interpreter, tmp_path, 2e-6)


def test_computed_operand_with_a_tail_is_zero_there(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    i, j, r = axis("i", 16), axis("j", 32), axis("r", 20)
    product = Contract((r,), ((Op("exp", (at("a", i, r),)), Op("log", (Op("abs", (at("b", j, r),)),))),))
    buffers = [
        buffer("a", DType.F32, 16, 20),
        buffer("b", DType.F32, 32, 20),
        buffer("c", DType.F32, 16, 32, role=Role.TEMP),
    ]
    check(
        program_of(buffers, [Stage((i, j), "c", (Index.of(i), Index.of(j)), product)], SMALL),
        interpreter,
        tmp_path,
        2e-6,
    )


def test_half_operand_computed_and_cast(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    i, j, r = axis("i", 16), axis("j", 32), axis("r", 20)
    a = Cast(DType.F16, Op("sigmoid", (at("a", i, r),)))
    product = Contract((r,), ((a, at("b", j, r)),))
    buffers = [
        buffer("a", DType.F16, 16, 20),
        buffer("b", DType.F16, 32, 20),
        buffer("c", DType.F32, 16, 32, role=Role.TEMP),
    ]
    program = program_of(buffers, [Stage((i, j), "c", (Index.of(i), Index.of(j)), product)], SMALL)
    assert MatmulForm.match(program, program.kernels[0]).half
    check(program, interpreter, tmp_path, 1e-3)


@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_guard(flag: float, interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    made = plain(16, 32, 16, DType.F32, replace(SMALL, dot="ieee"))
    made = replace(
        made, buffers=(*made.buffers, buffer("bad", DType.F32, 1)), kernels=(replace(made.kernels[0], guard="bad"),)
    )
    _, text = rendered(made)
    path = tmp_path / "kernel.py"
    path.write_text(text)
    arrays = {
        b.name: (
            np.full([s.evaluate({}) for s in b.shape], flag if b.name == "bad" else 2.0),
            b.dtype.value,
            tuple(s.evaluate({}) for s in b.strides),
        )
        for b in made.buffers
    }
    got = interpreter.submit(run_interpreted, str(path), arrays).result()["c"]
    assert (got == (64.0 if flag else 2.0)).all()


def test_tf32_operands_are_rounded_to_nearest(interpreter: ProcessPoolExecutor, tmp_path: Path) -> None:
    made = plain(16, 32, 16, DType.F32, replace(SMALL, dot="tf32"))
    made = replace(made, kernels=(replace(made.kernels[0], rounding="tf32"),))
    a = np.full((16, 16), 1 + 3 * 2.0**-12)
    got = check(made, interpreter, tmp_path, 1e-3, a=a, b=np.ones((32, 16)))
    assert (got == 16 * (1 + 2.0**-10)).all()


# ---- sm_90 ------------------------------------------------------------------------------------------------------


def build(program: Program, pool: ProcessPoolExecutor, folder: Path) -> dict[str, Any]:
    made, text = rendered(program)
    path = folder / "kernel.py"
    path.write_text(text)
    return pool.submit(compile_sm90, str(path), made.signature.model_dump()).result()


BIG = Schedule("matmul", (128, 128, 64), warps=8, stages=3, group=8)


def test_split_builds_without_spills(compiler: ProcessPoolExecutor, tmp_path: Path) -> None:
    built = build(split(4096, 4096, 4096, BIG), compiler, tmp_path)
    assert built["spilled"] == 0 and "wgmma.mma_async" in built["ptx"] and built["shared"] <= 227 << 10


@pytest.mark.parametrize("persistent", [False, True])
def test_split_through_descriptors(persistent: bool, compiler: ProcessPoolExecutor, tmp_path: Path) -> None:
    schedule = replace(BIG, descriptors=True, persistent=persistent)
    built = build(split(4096, 4096, 4096, schedule), compiler, tmp_path)
    assert built["spilled"] == 0 and "wgmma.mma_async" in built["ptx"] and built["shared"] <= 227 << 10
    assert "cp.async.bulk.tensor" in built["ptx"]
