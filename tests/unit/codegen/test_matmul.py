"""The matmul form and its Triton text: what is loaded how often, through what, and which schedules are chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mtmc.codegen.triton.emit import FileParts
from mtmc.codegen.triton.kernel import RenderedKernel
from mtmc.codegen.triton.matmul import render
from mtmc.data.hardware import H200
from mtmc.errors import CodegenError, IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, Load, Op, Stage
from mtmc.ir.forms.matmul import MatmulForm
from mtmc.ir.index import Axis, Dim, Index
from mtmc.ir.program import Buffer, Kernel, Program, Role, Stages, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

TILE = Schedule("matmul", (128, 128, 64), warps=8, stages=3, group=8)


def at(buffer: str, *index: Any) -> Load:
    return Load(buffer, tuple(Index.of(i) for i in index))


def buffer(name: str, dtype: DType, *shape: Any, role: Role = Role.INPUT) -> Buffer:
    return replace(Buffer.temp(name, dtype, tuple(Index.of(s) for s in shape)), role=role)


def linear(
    m: Any = 1024, n: Any = 512, k: Any = 256, dtype: DType = DType.F32, schedule: Schedule = TILE, **kernel: Any
) -> Program:
    """y = relu(x @ w.T + bias), the weight stored [n, k]."""
    i, j, r = Axis("i", Index.of(m)), Axis("j", Index.of(n)), Axis("r", Index.of(k))
    product = Contract((r,), ((at("x", i, r), at("w", j, r)),))
    body = Op("maximum", (Op("add", (product, at("bias", j))), Const(0.0, DType.F32)))
    buffers = (
        buffer("x", dtype, m, k),
        buffer("w", dtype, n, k, role=Role.PARAMETER),
        buffer("bias", dtype, n, role=Role.PARAMETER),
        buffer("y", dtype, m, n, role=Role.TEMP),
    )
    stage = Stage((i, j), "y", (Index.of(i), Index.of(j)), body)
    made = Kernel("k0", Stages((stage,)), "linear+relu", impl=Tile(schedule), lines=(15,), **kernel)
    return Program(buffers, (made,), ("y",))


def split(m: int = 4096, n: int = 4096, k: int = 4096, schedule: Schedule = TILE) -> Program:
    i, j, r = Axis("i", Index.of(m)), Axis("j", Index.of(n)), Axis("r", Index.of(k))
    hi_a, lo_a, hi_b, lo_b = at("hi_a", i, r), at("lo_a", i, r), at("hi_b", j, r), at("lo_b", j, r)
    big, small = Contract((r,), ((hi_a, hi_b),)), Contract((r,), ((lo_a, hi_b), (hi_a, lo_b)))
    body: Expr = Op("add", (big, Op("mul", (small, Const(2.0**-11, DType.F32)))))
    body = Op("mul", (Op("mul", (body, at("inv_a", i))), at("inv_b", j)))
    buffers = [buffer(name, DType.F16, m, k) for name in ("hi_a", "lo_a")]
    buffers += [buffer(name, DType.F16, n, k) for name in ("hi_b", "lo_b")]
    buffers += [buffer("inv_a", DType.F32, m), buffer("inv_b", DType.F32, n)]
    buffers += [buffer("y", DType.F32, m, n, role=Role.TEMP)]
    stage = Stage((i, j), "y", (Index.of(i), Index.of(j)), body)
    return Program(tuple(buffers), (Kernel("k0", Stages((stage,)), "matmul", impl=Tile(schedule)),), ("y",))


def with_operand(program: Program, convert: Callable[[Load], Expr]) -> Program:
    """The same program with its left operand computed on the way in."""
    (kernel,) = program.kernels
    assert isinstance(kernel.spec, Stages)
    (stage,) = kernel.spec.stages
    i, j = stage.axes
    r = Axis("r", program.buffer("x").shape[1])
    product = Contract((r,), ((convert(at("x", i, r)), at("w", j, r)),))
    spec = Stages((replace(stage, body=Op("add", (product, at("bias", j)))),))
    return replace(program, kernels=(replace(kernel, spec=spec),))


def form_of(program: Program) -> MatmulForm:
    return MatmulForm.match(program, program.kernels[0])


def rendered(program: Program) -> tuple[RenderedKernel, FileParts]:
    parts = FileParts.new()
    return render(program, program.kernels[0], form_of(program), parts), parts


def text_of(program: Program) -> str:
    made, _ = rendered(program)
    return made.text + "\n" + "\n".join(made.launch) + "\n"


def test_golden_linear(golden: Any) -> None:
    golden("linear", text_of(linear(m=1000)))


def test_golden_split(golden: Any) -> None:
    golden("split", text_of(split(schedule=replace(TILE, persistent=True, descriptors=True))))


def test_every_split_operand_is_loaded_once() -> None:
    made, _ = rendered(split())
    for name in ("hi_a", "lo_a", "hi_b", "lo_b"):
        assert made.text.count(f"tl.load({name}_ptr") == 1
    assert made.text.count("tl.dot(") == 3 and made.text.count("* one") == 1
    assert ("one", "fp32") in made.signature.args and ", 1.0, BM=128" in made.launch[-1]


def test_half_operands_are_not_widened() -> None:
    made, _ = rendered(linear(dtype=DType.F16))
    loop = made.text[made.text.index("for start") : made.text.index("bias = ")]
    assert ".to(" not in loop and "acc = tl.dot(x, w, acc)\n" in loop


@pytest.mark.parametrize(
    ("convert", "half"),
    [
        (lambda x: Op("maximum", (x, Const(0.0, DType.F32))), True),
        (lambda x: Cast(DType.F16, Op("exp", (x,))), True),
        (lambda x: Op("exp", (x,)), False),
        (lambda x: Op("maximum", (x, Const(0.1, DType.F32))), False),
    ],
)
def test_which_computed_operands_stay_half(convert: Callable[[Load], Expr], half: bool) -> None:
    """Only values that float16 certainly holds go to the tensor cores as float16."""
    program = with_operand(linear(dtype=DType.F16), convert)
    assert form_of(program).half is half
    assert ("input_precision" in text_of(program)) is not half


def test_descriptors_replace_the_pointers() -> None:
    made, parts = rendered(split(schedule=replace(TILE, descriptors=True)))
    assert "hi_a_ptr" not in made.text and "inv_a_ptr" in made.text
    assert ("hi_a_desc", "tensordesc<fp16[128, 64]>") in made.signature.args
    assert made.launch[0] == "hi_a_desc = TensorDescriptor(hi_a, [4096, 4096], [4096, 1], [128, 64])"
    assert "from triton.tools.tensor_descriptor import TensorDescriptor" in parts.setup


@pytest.mark.parametrize("k", [100, 2949])
def test_descriptors_need_aligned_rows(k: int) -> None:
    with pytest.raises(CodegenError, match="multiples of 16 bytes"):
        rendered(split(k=k, schedule=replace(TILE, descriptors=True)))


def test_descriptors_need_plain_operands() -> None:
    program = with_operand(linear(dtype=DType.F16), lambda x: Op("neg", (x,)))
    (kernel,) = program.kernels
    program = replace(program, kernels=(replace(kernel, impl=Tile(replace(TILE, descriptors=True))),))
    with pytest.raises(CodegenError, match="computed on the way in"):
        rendered(program)


def test_matrix_of_a_transposed_operand() -> None:
    program = linear(dtype=DType.F16)
    form = form_of(program)
    assert form.matrix(program, form.operands(False)[0], left=False) == {"n": Index.of(256), "k": Index.of(1)}
    with pytest.raises(IRError):
        form.matrix(program, at("x", form.m[0], 0), left=True)


def test_integers_stay_with_the_library() -> None:
    with pytest.raises(CodegenError, match="multiply no"):
        rendered(linear(dtype=DType.I64))


def test_tf32_only_where_the_reference_rounds() -> None:
    schedule = replace(TILE, dot="tf32")
    with pytest.raises(CodegenError, match="does not round"):
        rendered(linear(schedule=schedule))
    made, parts = rendered(linear(schedule=schedule, rounding="tf32"))
    assert made.text.count("_round_tf32(") == 2 and "_round_tf32" in parts.helpers


@pytest.mark.parametrize("tile", [(8, 128, 64), (128, 96, 64)])
def test_tiles_are_powers_of_two_from_16(tile: tuple[int, int, int]) -> None:
    with pytest.raises(CodegenError, match="powers of two"):
        rendered(linear(schedule=replace(TILE, tile=tile)))


def test_persistent_grid() -> None:
    made, parts = rendered(linear(schedule=replace(TILE, persistent=True)))
    assert made.launch[-1].startswith("k0_linear_relu[(min(32, SMS),)]") and any("SMS" in s for s in parts.setup)


def test_dynamic_batch() -> None:
    rows = Dim("B", 4096)
    made, _ = rendered(linear(m=Index.of(rows) * 4))
    assert "m_mask = m < B * 4" in made.text
    assert ("B", "i32") in made.signature.args


def test_64_bit_indices_only_where_needed() -> None:
    assert "int64" not in text_of(linear(m=2**15, n=2**15, k=64))
    assert "int64" in text_of(linear(m=2**16, n=2**15, k=64))


@pytest.mark.parametrize(
    "sizes", [(4096, 4096, 4096), (16384, 16384, 32), (256, 256, 2**19), (16, 4096, 4096), (512, 512, 512), (7, 5, 3)]
)
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32, DType.F64])
def test_schedules_fit(sizes: tuple[int, int, int], dtype: DType) -> None:
    program = linear(*sizes, dtype=dtype)
    form = form_of(program)
    for schedule in (form.default(program, H200), *form.tiles(program)):
        assert form.fits(program, schedule)
        assert all(block >= 16 for block in schedule.tile)
        (kernel,) = program.kernels
        rendered(replace(program, kernels=(replace(kernel, impl=Tile(schedule)),)))


def test_default_schedules() -> None:
    """Large tiles where there are many, more of them where there are few; descriptors where operands allow them."""
    program = split()
    assert form_of(program).default(program, H200) == replace(TILE, descriptors=True)
    small = split(1024, 1024, 4096)
    tm, tn, _ = form_of(small).default(small, H200).tile
    assert tm * tn == 128 * 64
    guarded = linear(guard="flag")
    assert form_of(guarded).default(guarded, H200).dot == "ieee"
