"""Every rule finds the Program that breaks it, and says which kernel and rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from mtmc.errors import IRError
from mtmc.ir.check import KERNEL_RULES, PROGRAM_RULES, check, problems
from mtmc.ir.expr import Const, Expr, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Opaque, Program, Ref, Role, Stages, Update
from mtmc.ir.types import DType
from tests.strategies import programs

I = Index.of  # noqa: E741
i, j = Axis("i", I(4)), Axis("j", I(6))
SHAPE = (I(4), I(6))


def load(name: str, *index: Axis | Index) -> Load:
    return Load(name, tuple(map(I, index)))


def copy(source: str = "x", target: str = "y", number: str = "k0", body: Expr | None = None) -> Kernel:
    stage = Stage((i, j), target, (I(i), I(j)), body or load(source, i, j))
    return Kernel(number, Stages((stage,)), "copy", lines=(3,))


def program(*kernels: Kernel, outputs: tuple[str, ...] = ("y",)) -> Program:
    x = replace(Buffer.temp("x", DType.F32, SHAPE), role=Role.INPUT)
    temps = [Buffer.temp(name, DType.F32, SHAPE) for name in "yzl"]
    return Program((x, *temps, Buffer.temp("n", DType.I64, SHAPE)), kernels, outputs)


def staged(**changes: object) -> Program:
    kernel = copy()
    assert isinstance(kernel.spec, Stages)
    return program(replace(kernel, spec=Stages((replace(kernel.spec.stages[0], **changes),))))  # type: ignore[arg-type]


def opaque(*calls: Call, exports: tuple[str, ...] = ("y",)) -> Program:
    return program(Kernel("k0", Opaque(), "frob", calls, exports=exports))


def with_local(*after: Kernel, read_first: bool = False) -> Program:
    write = Stage((i, j), "l", (I(i), I(j)), load("x", i, j))
    use = Stage((i, j), "y", (I(i), I(j)), load("l", i, j))
    stages = (use, write) if read_first else (write, use)
    return program(Kernel("k0", Stages(stages, ("l",)), "both"), *after)


K = Axis("k", I(6))
FRAG = Call("aten.f.default", (Ref("x"),), (), ("y",))

BROKEN: dict[str, list[Callable[[], Program]]] = {
    "names are unique": [
        lambda: program(copy(), copy()),
        lambda: replace(program(copy()), buffers=(*program().buffers, program().buffers[0])),
    ],
    "every extent has a stride": [
        lambda: replace(program(copy()), buffers=(*program().buffers, Buffer("q", DType.F32, SHAPE, (I(1),)))),
    ],
    "results exist": [
        lambda: program(copy(), outputs=("nope",)),
        lambda: program(copy(), outputs=("z",)),
        lambda: replace(program(copy()), updates=(Update("x", "y"),)),
    ],
    "buffers exist": [lambda: program(copy("q")), lambda: program(replace(copy(), guard="q"))],
    "calls refer to what exists": [
        lambda: opaque(replace(FRAG, args=(Ref("v"),))),
        lambda: opaque(FRAG, exports=("y", "z")),
    ],
    "buffers are written before use": [
        lambda: program(copy("z"), copy("x", "z", "k1")),
        lambda: program(replace(copy(), guard="x"), copy("x", "y", "k1")),
    ],
    "only temporaries are written": [lambda: program(copy("x", "x"), copy("x", "y", "k1"))],
    "locals stay inside": [
        lambda: with_local(copy("l", "z", "k1")),
        lambda: replace(with_local(), outputs=("y", "l")),
        lambda: with_local(read_first=True),
    ],
    "axes are in scope": [
        lambda: staged(body=load("x", i, K)),
        lambda: staged(store=(I(i), I(K))),
        lambda: staged(when=(I(K),)),
        lambda: staged(body=Scan("sum", K, load("x", i, j))),
    ],
    "an axis name means one axis": [
        lambda: staged(body=Reduce("sum", (Axis("j", I(3)),), (load("x", i, Axis("j", I(3))),))),
    ],
    "indices fit the buffer": [
        lambda: staged(body=load("x", i)),
        lambda: staged(body=load("x", i, I(j) + 1)),
        lambda: staged(body=load("x", i, I(j) - 1)),
        lambda: staged(store=(I(i), I(j) + 1)),
    ],
    "an element is stored once": [
        lambda: staged(axes=(i, j, K)),
        lambda: staged(store=(I(i), I(j) // 2)),
        lambda: staged(accumulate="mean"),
    ],
    "stores cover the buffer": [
        lambda: staged(axes=(i, Axis("h", I(5))), store=(I(i), I(Axis("h", I(5)))), body=Const(0.0, DType.F32)),
        lambda: staged(when=(I(i) - 1,)),
    ],
    "types agree": [
        lambda: replace(program(copy("x", "n")), outputs=("n",)),
        lambda: staged(body=Load("x", (I(i), load("x", i, j)))),
        lambda: program(copy(), replace(copy("x", "y", "k1"), guard="x")),
    ],
}


@pytest.mark.parametrize("rule", [*PROGRAM_RULES, *KERNEL_RULES])
def test_every_rule_finds_what_breaks_it(rule: str) -> None:
    for number, build in enumerate(BROKEN[rule]):
        found = list(problems(build()))
        assert any(f"'{rule}'" in problem for problem in found), (number, found)
        with pytest.raises(IRError):
            check(build())


def test_a_message_names_kernel_line_and_rule() -> None:
    with pytest.raises(IRError, match=r"k0 \(copy, line 3\) breaks the rule 'axes are in scope'"):
        check(staged(body=load("x", i, K)))


def test_sound_programs_pass() -> None:
    roll = Select((I(j) - 2,), load("x", i, I(j) - 2), load("x", i, I(j) + 4))
    padded = Load("x", (I(i), I(j) - 1), when=(I(j) - 1,))
    halves = [
        Stage((i, Axis("h", I(3))), "y", (I(i), I(Axis("h", I(3))) + 3 * part), Const(1.0, DType.F32))
        for part in (0, 1)
    ]
    for sound in (
        program(copy(body=roll)),
        program(copy(body=Op("neg", (padded,)))),
        program(Kernel("k0", Stages(tuple(halves)), "cat")),
        staged(accumulate="add", axes=(i, j, K)),
        with_local(),
        opaque(FRAG),
        program(copy("x", "z"), copy("z", "y", "k1")),
    ):
        assert list(problems(sound)) == []


@settings(max_examples=60, deadline=None)
@given(programs())
def test_random_programs_keep_the_rules(example: Program) -> None:
    check(example)


@settings(max_examples=30, deadline=None)
@given(programs(dynamic=True))
def test_random_dynamic_programs_keep_the_rules(example: Program) -> None:
    check(example)
