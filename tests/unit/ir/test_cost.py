"""Operations, bytes and times counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mtmc.data.hardware import H200
from mtmc.ir.cost import (
    floor_bytes,
    generated_share,
    is_view,
    kernel_cost,
    kernel_ms,
    program_ms,
    shares,
)
from mtmc.ir.expr import Cast, Const, Contract, Expr, Load, Op, Reduce, Select, Stage
from mtmc.ir.footprint import Footprint, injective, of_load, of_map
from mtmc.ir.index import Axis, Dim, Index, contiguous_strides
from mtmc.ir.program import Buffer, Call, Kernel, Library, Opaque, Program, Ref, Role, Source, Stages, Tile, Update
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

I = Index.of  # noqa: E741


def ax(name: str, extent: Any) -> Axis:
    return Axis(name, I(extent))


def buffer(name: str, shape: tuple[Any, ...], role: Role = Role.TEMP, dtype: DType = DType.F32) -> Buffer:
    sizes = tuple(map(I, shape))
    return Buffer(name, dtype, sizes, contiguous_strides(sizes), role)


def load(name: str, *index: Any) -> Load:
    return Load(name, tuple(sub if isinstance(sub, Expr) else I(sub) for sub in index))


def at(axes: tuple[Axis, ...], target: str, body: Expr) -> Stage:
    return Stage(axes, target, tuple(map(I, axes)), body)


def one(*buffers: Buffer, stages: tuple[Stage, ...], **fields: Any) -> Program:
    local = fields.pop("local", ())
    kernel = Kernel("k0", Stages(stages, local), "test", **fields)
    return Program(buffers, (kernel,), (stages[-1].target,))


M, N, K = 64, 32, 128
m, n, k = ax("m", M), ax("n", N), ax("k", K)


def linear(dtype: DType = DType.F32, **fields: Any) -> Program:
    body = Op("add", (Contract((k,), ((load("x", m, k), load("w", n, k)),)), load("b", n)))
    return one(
        buffer("x", (M, K), Role.INPUT, dtype),
        buffer("w", (N, K), Role.PARAMETER, dtype),
        buffer("b", (N,), Role.PARAMETER, dtype),
        buffer("y", (M, N), dtype=dtype),
        stages=(at((m, n), "y", body),),
        **fields,
    )


def cost(program: Program, number: int = 0) -> Any:
    return kernel_cost(program, program.kernels[number])


def test_linear() -> None:
    found = cost(linear())
    assert found.contract_flops == 2 * M * N * K
    assert found.flops == 2 * M * N * K + M * N
    assert found.bytes_read == 4 * (M * K + N * K + N)
    assert found.bytes_written == 4 * M * N
    assert found.kind == "fp32"


def matmul_tile(dot: str) -> Tile:
    return Tile(Schedule("matmul", (64, 32, 32), dot=dot))


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (linear(DType.F16), "fp16"),
        (linear(DType.BF16), "bf16"),
        (linear(DType.F64), "fp64"),
        (linear(rounding="tf32"), "tf32"),
        (linear(impl=matmul_tile("tf32x3")), "tf32x3"),
        (linear(impl=matmul_tile("ieee")), "fp32"),
        (linear(DType.F16, impl=matmul_tile("tf32x3")), "fp16"),
    ],
)
def test_the_unit_of_a_contraction(program: Program, kind: str) -> None:
    assert cost(program).kind == kind


def test_operands_that_are_cast_to_half_run_on_tensor_cores() -> None:
    halves = tuple(Cast(DType.F16, load(name, axis, k)) for name, axis in (("x", m), ("w", n)))
    terms = (halves, halves, halves)
    program = one(
        *linear().buffers,
        stages=(at((m, n), "y", Contract((k,), terms)),),  # type: ignore[arg-type]
    )
    assert cost(program).kind == "fp16"
    assert cost(program).contract_flops == 3 * 2 * M * N * K


def test_softmax_reads_once_and_counts_both_parts_as_one_reduction() -> None:
    r, c = ax("r", 5), ax("c", 7)
    shifted = Op("exp", (Op("sub", (load("x", r, c), load("m", r))),))
    program = one(
        buffer("x", (5, 7), Role.INPUT), buffer("m", (5,)), buffer("s", (5,)), buffer("y", (5, 7)),
        stages=(
            at((r,), "m", Reduce("maxsumexp", (c,), (load("x", r, c),), 0)),
            at((r,), "s", Reduce("maxsumexp", (c,), (load("x", r, c),), 1)),
            at((r, c), "y", Op("div", (shifted, load("s", r)))),
        ),
        local=("m", "s"),
    )  # fmt: skip
    found = cost(program)
    assert found.flops == 35 * (10 + 8 + 1 + 1)
    assert (found.bytes_read, found.bytes_written) == (140, 140)
    assert found.contract_flops == 0


def test_a_value_that_does_not_depend_on_an_axis_is_counted_once() -> None:
    r, c = ax("r", 5), ax("c", 7)
    body = Op("mul", (load("x", r, c), Op("rsqrt", (load("v", r),))))
    program = one(
        buffer("x", (5, 7), Role.INPUT), buffer("v", (5,), Role.INPUT), buffer("y", (5, 7)),
        stages=(at((r, c), "y", body),),
    )  # fmt: skip
    assert cost(program).flops == 35 + 5 * 4


def test_a_dynamic_dim_counts_at_its_value_or_its_limit() -> None:
    b = ax("b", Dim("B", 100))
    program = one(
        buffer("x", (Dim("B", 100),), Role.INPUT), buffer("y", (Dim("B", 100),)),
        stages=(at((b,), "y", Op("neg", (load("x", b),))),),
    )  # fmt: skip
    assert cost(program).flops == 100
    assert kernel_cost(program, program.kernels[0], {"B": 3}).bytes == 24
    assert floor_bytes(program, {"B": 3}) == 24


# ---- footprints ------------------------------------------------------------------------------------------------

h, u, v = ax("h", 10), ax("u", 3), ax("v", 10)


@pytest.mark.parametrize(
    ("index", "shape", "when", "wanted"),
    [
        ((I(h),), (10,), (), 10),
        ((I(h),), (20,), (), 10),  # a slice
        ((I(h) * 2,), (20,), (), 10),  # every second
        ((I(h) * 2 + u,), (21,), (), 21),  # windows that overlap
        ((I(h) * 4 + u,), (40,), (), 30),  # windows with gaps
        ((I(h) + u - 1,), (10,), (I(h) + u - 1, 10 - I(h) - u), 10),  # padding
        ((I(h), I(v)), (10, 10), (I(h) - v,), 55),  # a triangle
        ((I(h), I(h)), (10, 10), (), 10),  # a diagonal
        ((I(h), I(0)), (10, 10), (), 10),  # one column
        ((I(h) // 5, I(h) % 5), (2, 5), (), 10),  # a flat walk
        ((), (), (), 1),
    ],
)
def test_footprints(index: tuple[Index, ...], shape: tuple[int, ...], when: tuple[Index, ...], wanted: int) -> None:
    assert of_map(index, tuple(map(I, shape)), when, {}) == Footprint(wanted, wanted)


def test_large_footprints_have_limits() -> None:
    a, b, w = ax("a", 4096), ax("b", 4096), ax("w", 7)
    flat = ax("f", 4096 * 4096)
    shape = (I(4096), I(4096))
    square = Footprint(4096 * 4096, 4096 * 4096)
    assert of_map((I(a), I(b)), shape, (), {}) == square
    assert of_map((I(flat) // 4096, I(flat) % 4096), shape, (), {}) == square
    assert of_map((I(a), I(b)), shape, (I(a) - b,), {}) == Footprint(0, 4096 * 4096)
    assert of_map((I(a) * 4096 + b,), (I(2**24),), (), {}) == square
    assert of_map((I(a) * 4096 + b + w,), (I(2**25),), (), {}) == Footprint(0, 2**24 + 6)


def test_a_gather_reads_at_most_a_row_for_each_index() -> None:
    which, column = ax("i", 8), ax("c", 16)
    table = (I(1000), I(16))
    assert of_load(load("t", load("p", which), column), table, {}) == Footprint(0, 128)


def test_injective_is_a_mixed_radix_number() -> None:
    a, b = ax("a", 3), ax("b", 4)
    assert injective(I(a) * 4 + b, (a, b), {})
    assert not injective(I(a) * 3 + b, (a, b), {})
    assert not injective(I(a), (a, b), {})
    assert injective(I(b) - I(a) * 4, (a, b), {})


# ---- opaque kernels --------------------------------------------------------------------------------------------


def called(
    target: str, args: tuple[Any, ...], shapes: dict[str, tuple[int, ...]], view: bool = False, **fields: Any
) -> Program:
    call = Call(target, args, (), ("y",), view)
    kernel = Kernel("k0", Opaque(), "op", (call,), exports=("y",), **fields)
    roles = {"y": Role.TEMP, "w": Role.PARAMETER}
    buffers = tuple(buffer(name, shape, roles.get(name, Role.INPUT)) for name, shape in shapes.items())
    return Program(buffers, (kernel,), ("y",))


def test_convolution() -> None:
    shapes = {"x": (2, 6, 8, 8), "w": (12, 3, 3, 3), "y": (2, 12, 8, 8)}
    args: tuple[Any, ...] = (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 2)
    found = cost(called("aten.convolution.default", args, shapes, rounding="tf32"))
    assert found.flops == 2 * (2 * 12 * 8 * 8) * (3 * 3 * 3)  # 6 channels in 2 groups
    assert found.kind == "tf32"
    assert found.bytes == 4 * (2 * 6 * 64 + 12 * 27 + 2 * 12 * 64)


def test_transposed_convolution_works_on_its_input() -> None:
    shapes = {"x": (2, 6, 4, 4), "w": (6, 5, 2, 2), "y": (2, 5, 8, 8)}
    args: tuple[Any, ...] = (Ref("x"), Ref("w"), None, (2, 2), (0, 0), (1, 1), True, (0, 0), 1)
    assert cost(called("aten.convolution.default", args, shapes)).flops == 2 * (2 * 6 * 16) * (5 * 4)


def test_lstm_and_attention_and_linear() -> None:
    shapes = {"x": (10, 4, 8), "w": (64, 8), "r": (64, 16), "b": (64,), "h": (1, 4, 16), "y": (10, 4, 16)}
    args: tuple[Any, ...] = (Ref("x"), (Ref("h"), Ref("h")), (Ref("w"), Ref("r"), Ref("b"), Ref("b")), True, 1)
    assert cost(called("aten.lstm.input", args, shapes)).flops == 2 * 40 * (64 * 8 + 64 * 16)
    shapes = {"q": (2, 4, 32, 16), "k": (2, 4, 48, 16), "v": (2, 4, 48, 16), "y": (2, 4, 32, 16)}
    attention = called("aten.scaled_dot_product_attention.default", (Ref("q"), Ref("k"), Ref("v")), shapes)
    assert cost(attention).flops == 2 * (2 * 4 * 32 * 48 * 16) * 2
    linear_call = called("aten.linear.default", (Ref("x"), Ref("w")), {"x": (5, 7), "w": (3, 7), "y": (5, 3)})
    assert cost(linear_call).flops == 2 * 5 * 3 * 7


def test_an_embedding_reads_rows_and_not_the_table() -> None:
    shapes = {"w": (50_000, 64), "x": (32,), "y": (32, 64)}
    program = called("aten.embedding.default", (Ref("w"), Ref("x")), shapes)
    assert cost(program).bytes_read == 4 * (32 * 64 + 32)
    assert floor_bytes(program) == 4 * (32 + 32 * 64)


def test_views_are_free() -> None:
    program = called("aten.permute.default", (Ref("x"), (1, 0)), {"x": (8, 4), "y": (4, 8)}, view=True)
    assert is_view(program.kernels[0])
    assert kernel_ms(program, program.kernels[0], H200)[0] == 0.0
    assert floor_bytes(program) == 0
    assert generated_share(program, H200) == 1.0


# ---- time ------------------------------------------------------------------------------------------------------


def copy(number: str, source: str, target: str, size: int) -> Kernel:
    i = ax("i", size)
    return Kernel(number, Stages((at((i,), target, Op("neg", (load(source, i),))),)), "neg")


def chain(size: int, *impls: Any) -> Program:
    names = ["x", *(f"t{number}" for number in range(len(impls)))]
    buffers = tuple(buffer(name, (size,), Role.INPUT if name == "x" else Role.TEMP) for name in names)
    kernels = tuple(
        replace(copy(f"k{number}", names[number], names[number + 1], size), impl=impl)
        for number, impl in enumerate(impls)
    )
    return Program(buffers, kernels, (names[-1],))


TILE = Tile(Schedule("pointwise", (1024,)))


def test_memory_compute_and_launch_bounds() -> None:
    large = chain(2**26, TILE)
    ms, bound = kernel_ms(large, large.kernels[0], H200)
    assert bound == "memory"
    assert ms == pytest.approx(2 * 4 * 2**26 / H200.bandwidth_Bps * 1e3 + H200.launch_us * 1e-3)
    small = chain(16, TILE)
    assert kernel_ms(small, small.kernels[0], H200)[1] == "launch"
    a, b, c = ax("a", 4096), ax("b", 4096), ax("c", 4096)
    square = one(
        buffer("x", (4096, 4096), Role.INPUT), buffer("w", (4096, 4096), Role.PARAMETER), buffer("y", (4096, 4096)),
        stages=(at((a, b), "y", Contract((c,), ((load("x", a, c), load("w", c, b)),))),),
    )  # fmt: skip
    ms, bound = kernel_ms(square, square.kernels[0], H200)
    assert bound == "compute"
    assert ms == pytest.approx(2 * 4096**3 / H200.fp32_flops * 1e3 + H200.launch_us * 1e-3)
    fast = replace(square, kernels=(replace(square.kernels[0], impl=matmul_tile("tf32x3")),))
    wanted = 3 * 2 * 4096**3 / H200.tf32_flops * 1e3 + H200.launch_us * 1e-3
    assert kernel_ms(fast, fast.kernels[0], H200)[0] == pytest.approx(wanted)


def test_shares_add_up_and_generated_kernels_are_told_apart() -> None:
    program = chain(2**20, TILE, Library(), Source("def f(x, y): ...", "f"), TILE)
    found = shares(program, H200)
    assert found == pytest.approx(dict.fromkeys(("k0", "k1", "k2", "k3"), 0.25))
    assert generated_share(program, H200) == pytest.approx(0.75)
    assert program_ms(program, H200) == pytest.approx(4 * kernel_ms(program, program.kernels[0], H200)[0])


def test_a_guarded_kernel_costs_a_launch() -> None:
    program = chain(2**26, TILE)
    twice = replace(program.kernels[0], id="k1", guard="x")
    assert kernel_ms(program, twice, H200) == (pytest.approx(H200.launch_us * 1e-3), "launch")


# ---- floor -----------------------------------------------------------------------------------------------------


def test_the_floor_leaves_out_what_lies_between_and_what_is_dead() -> None:
    program = chain(1000, TILE, TILE)
    assert floor_bytes(program) == 2 * 4000
    dead = copy("k9", "w", "d", 500)
    buffers = (*program.buffers, buffer("w", (500,), Role.PARAMETER), buffer("d", (500,)))
    with_dead = replace(program, buffers=buffers, kernels=(*program.kernels, dead))
    assert floor_bytes(with_dead) == 2 * 4000
    assert floor_bytes(replace(with_dead, outputs=("t1", "d"))) == 2 * 4000 + 2 * 2000


def test_the_floor_counts_updates_and_not_constants() -> None:
    i = ax("i", 100)
    body = Op("add", (load("s", i), load("c", i)))
    program = one(
        buffer("s", (100,), Role.STATE), buffer("c", (100,), Role.CONSTANT), buffer("y", (100,)),
        stages=(at((i,), "y", body),),
    )  # fmt: skip
    program = replace(program, outputs=(), updates=(Update("s", "y"),))
    assert floor_bytes(program) == 400 + 400


def test_the_floor_counts_only_what_is_certainly_read() -> None:
    i = ax("i", 50)
    sliced = one(buffer("x", (100,), Role.INPUT), buffer("y", (50,)), stages=(at((i,), "y", load("x", I(i) * 2)),))
    assert floor_bytes(sliced) == 200 + 200
    some = Select((I(i) - 25,), load("x", i), Const(0.0, DType.F32))
    half = one(buffer("x", (100,), Role.INPUT), buffer("y", (50,)), stages=(at((i,), "y", some),))
    assert floor_bytes(half) == 25 * 4 + 200
    both = Select((I(i) - 25, 40 - I(i)), Const(0.0, DType.F32), load("x", i))
    unknown = one(buffer("x", (100,), Role.INPUT), buffer("y", (50,)), stages=(at((i,), "y", both),))
    assert floor_bytes(unknown) == 200  # the complement of two predicates is not followed
    assert cost(unknown).bytes_read == 200
    mask = Op("where", (Op("lt", (load("c", i), Const(0.0, DType.F32))), load("x", i), Const(0.0, DType.F32)))
    chosen = one(
        buffer("x", (50,), Role.INPUT), buffer("c", (50,), Role.INPUT), buffer("y", (50,)),
        stages=(at((i,), "y", mask),),
    )  # fmt: skip
    assert floor_bytes(chosen) == 200 + 200  # the condition and the result
    assert cost(chosen).bytes_read == 400
    expanded = replace(sliced.buffers[0], shape=(I(100),), strides=(I(0),))
    assert floor_bytes(replace(sliced, buffers=(expanded, sliced.buffers[1]))) == 4 + 200
