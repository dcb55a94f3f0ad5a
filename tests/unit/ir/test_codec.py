"""A Program written and read is the same Program; a hash sees structure and nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings

from mtmc.errors import IRError
from mtmc.ir.codec import from_json, kernel_classes, structural_hash, to_json
from mtmc.ir.expr import Const, Load, Op, Stage, map_loads
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import (
    Buffer,
    Call,
    Kernel,
    Opaque,
    Program,
    Ref,
    Role,
    Source,
    Stages,
    Tile,
    Token,
    Update,
)
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from tests.strategies import programs

N = Index.of(4)


def vector(name: str, role: Role = Role.TEMP, source: str = "") -> Buffer:
    return replace(Buffer.temp(name, DType.F32, (N,)), role=role, source=source)


def unary(number: str, op: str, source: str, target: str, axis: str = "i") -> Kernel:
    at = Axis(axis, N)
    body = Op(op, (Load(source, (Index.of(at),)),))
    return Kernel(number, Stages((Stage((at,), target, (Index.of(at),), body),)), op)


def program(*kernels: Kernel, outputs: tuple[str, ...] = ("y",)) -> Program:
    names = dict.fromkeys(name for kernel in kernels for name in kernel.writes)
    given = [vector("x", Role.INPUT, "0"), vector("w", Role.PARAMETER, "fc.weight")]
    return Program((*given, *map(vector, names)), kernels, outputs)


@settings(max_examples=80, deadline=None)
@given(programs())
def test_round_trip(example: Program) -> None:
    text = to_json(example)
    back = from_json(text)
    assert back == example
    assert to_json(back) == text
    assert structural_hash(back) == structural_hash(example)


@settings(max_examples=30, deadline=None)
@given(programs(dynamic=True))
def test_round_trip_with_a_dynamic_dim(example: Program) -> None:
    assert from_json(to_json(example)) == example


def everything() -> Program:
    call = Call(
        "aten.native_dropout.default",
        (Ref("x"), (1, 1.0, True, None, math.inf), Token("torch.float32"), N * 2),
        (("train", True),),
        ("y", None),
    )
    opaque = Kernel("k0", Opaque(("random",)), "dropout", (call,), lines=(3, 9), exports=("y",), guard="x")
    made = replace(unary("k1", "neg", "y", "z"), impl=Source("def f(y, z):\n    pass\n", "f"), rounding="tf32")
    tiled = replace(unary("k2", "neg", "z", "u"), impl=Tile(Schedule("pointwise", (128,), order=1)))
    base = program(opaque, made, tiled, outputs=("z", "u"))
    state = vector("s", Role.STATE, "bn.mean")
    return replace(
        base, buffers=(*base.buffers, state), updates=(Update("s", "u"),), output_tree="tuple", launch="graph"
    )


def test_round_trip_keeps_every_kind_of_value() -> None:
    back = from_json(to_json(everything()))
    assert back == everything()
    kinds = [type(item) for item in back.kernels[0].calls[0].args[1]]
    assert kinds == [int, float, bool, type(None), float]  # equal in Python, not in PyTorch


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_equal_constants_of_other_types_stay_apart(value: float) -> None:
    at = Axis("i", N)
    both = Op("add", (Const(1, DType.F32), Op("add", (Const(1.0, DType.F32), Const(value, DType.F32)))))
    kernel = Kernel("k0", Stages((Stage((at,), "y", (Index.of(at),), both),)), "fill")
    back = from_json(to_json(program(kernel)))
    stage = back.kernels[0].spec.stages[0]  # type: ignore[union-attr]
    assert type(stage.body.args[1].args[1].value) is type(value)  # type: ignore[union-attr]
    assert type(stage.body.args[0].value) is int  # type: ignore[union-attr]


def test_repeated_values_are_written_once() -> None:
    nodes = json.loads(to_json(everything()))["nodes"]
    assert len({json.dumps(node) for node in nodes}) == len(nodes)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"version":1,"nodes":[],"program":0}',
     '{"version":1,"nodes":[{"is":"Nope"}],"program":0}',
     '{"version":1,"nodes":[{"is":"Library"}],"program":0}', '{"version":99,"nodes":[],"program":0}'],
)  # fmt: skip
def test_broken_text_is_an_ir_error(text: str) -> None:
    with pytest.raises(IRError):
        from_json(text)


# ---- hash --------------------------------------------------------------------------------------------------


def renamed(example: Program) -> Program:
    """Every temporary, axis, id, line and human name replaced; axis names sort the other way round."""
    names = {b.name: (f"zz{n}" if b.role is Role.TEMP else b.name) for n, b in enumerate(example.buffers)}

    def stage(old: Stage) -> Stage:
        axes = {axis for axis in old.axes} | {axis for node in _walk(old) for axis in getattr(node, "axes", ()) or ()}
        mapping = {axis: Index.of(Axis(f"a{99 - int(axis.name[1:])}{axis.name[0]}", axis.extent)) for axis in axes}
        new = old.rename(mapping)
        order = tuple(mapping[axis].single for axis in old.axes)
        body = map_loads(new.body, lambda load: replace(load, buffer=names[load.buffer]))
        return replace(new, axes=order, target=names[old.target], body=body)

    kernels = []
    for number, kernel in enumerate(example.kernels):
        spec = kernel.spec
        assert isinstance(spec, Stages)
        spec = Stages(tuple(map(stage, spec.stages)), tuple(names[name] for name in spec.locals))
        kernels.append(replace(kernel, id=f"q{number}", spec=spec, op="other", lines=(77,)))
    buffers = tuple(replace(buffer, name=names[buffer.name]) for buffer in example.buffers)
    return Program(buffers, tuple(kernels), tuple(names[name] for name in example.outputs))


def _walk(stage: Stage) -> list[object]:
    from mtmc.ir.expr import walk

    return list(walk(stage.body))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_hash_does_not_see_names(example: Program) -> None:
    other = renamed(example)
    assert other != example
    assert structural_hash(other) == structural_hash(example)


def test_hash_does_not_see_the_order_of_independent_kernels() -> None:
    left, right = unary("k0", "exp", "x", "a"), unary("k1", "neg", "x", "b")
    at = Axis("i", N)
    body = Op("sub", (Load("a", (Index.of(at),)), Load("b", (Index.of(at),))))
    join = Kernel("k2", Stages((Stage((at,), "y", (Index.of(at),), body),)), "sub")
    assert structural_hash(program(left, right, join)) == structural_hash(program(right, left, join))
    swapped = replace(join, spec=Stages((replace(join.spec.stages[0], body=Op("sub", body.args[::-1])),)))  # type: ignore[union-attr]
    assert structural_hash(program(left, right, join)) != structural_hash(program(left, right, swapped))


def test_hash_keeps_the_order_of_random_draws() -> None:
    def draw(number: str, target: str, op: str) -> Kernel:
        call = Call(op, (Ref("x"),), (), (target,))
        return Kernel(number, Opaque(("random",)), op, (call,), exports=(target,))

    a, b = draw("k0", "y", "aten.rand_like.default"), draw("k1", "z", "aten.randn_like.default")
    assert structural_hash(program(a, b, outputs=("y", "z"))) != structural_hash(program(b, a, outputs=("y", "z")))


def changes() -> dict[str, Program]:
    base = program(unary("k0", "exp", "x", "y"))
    kernel = base.kernels[0]
    tiled = replace(kernel, impl=Tile(Schedule("pointwise", (128,))))
    other = replace(kernel, impl=Tile(Schedule("pointwise", (256,))))
    half = tuple(replace(b, dtype=DType.F16) if b.name == "y" else b for b in base.buffers)
    moved = tuple(replace(b, strides=(Index.of(2),)) if b.name == "y" else b for b in base.buffers)
    return {
        "base": base,
        "operation": program(unary("k0", "neg", "x", "y")),
        "input": program(unary("k0", "exp", "w", "y")),
        "tiled": replace(base, kernels=(tiled,)),
        "tile": replace(base, kernels=(other,)),
        "rounding": replace(base, kernels=(replace(kernel, rounding="tf32"),)),
        "guard": replace(base, kernels=(replace(kernel, guard="w"),)),
        "dtype": replace(base, buffers=half),
        "strides": replace(base, buffers=moved),
        "launch": replace(base, launch="graph"),
        "tree": replace(base, output_tree="tuple"),
        "outputs": replace(base, outputs=("y", "y")),
        "update": replace(base, updates=(Update("w", "y"),)),
        "fixed arguments": replace(base, fixed_arguments=((1, 2.0),)),
        "dead kernel": program(unary("k0", "exp", "x", "y"), unary("k1", "exp", "y", "z")),
    }


def test_hash_sees_every_change_of_structure() -> None:
    hashes = {name: structural_hash(example) for name, example in changes().items()}
    assert len(set(hashes.values())) == len(hashes), hashes


def test_every_field_is_hashed_or_left_out_on_purpose() -> None:
    """A new field fails here: add it to the hash and to ``changes``, or to what is left out."""
    hashed = {"buffers", "kernels", "outputs", "updates", "output_tree", "fixed_arguments", "launch"}
    assert {field.name for field in fields(Program)} == hashed
    left_out = {"id", "op", "lines"}
    hashed = {"spec", "calls", "impl", "rounding", "guard", "exports"}
    assert {field.name for field in fields(Kernel)} == hashed | left_out


def test_kernel_classes_join_equal_kernels_in_order() -> None:
    kernels = (
        unary("k0", "exp", "x", "a"),
        unary("k1", "neg", "a", "b", "j"),
        unary("k2", "exp", "b", "y", "z"),
    )
    assert list(kernel_classes(program(*kernels)).values()) == [("k0", "k2"), ("k1",)]


def test_hash_of_a_kernel_needs_its_program() -> None:
    with pytest.raises(IRError, match="k0"):
        structural_hash(unary("k0", "exp", "x", "y"))
