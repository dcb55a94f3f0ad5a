from __future__ import annotations

import pytest

from mtmc.actions import Action, apply, parse
from mtmc.data.hardware import H200
from mtmc.errors import CoderError, IllegalAction
from mtmc.ir.expr import Load, Op, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Library, Program, Ref, Role, Source, Stages
from mtmc.ir.types import DType
from mtmc.micro.coder import Feedback
from mtmc.micro.compiler import CompilerCoder
from mtmc.micro.scripted import ScriptedCoder
from mtmc.micro.source import with_source

GOOD = "```python\nimport torch\n\n\ndef k0(x, t0):\n    torch.exp(x, out=t0)\n```"


@pytest.fixture
def program() -> Program:
    """``out = tanh(exp(x))``, both by the library."""
    shape = (Index.of(8), Index.of(16))
    axes = (Axis("i0", shape[0]), Axis("i1", shape[1]))
    at = tuple(Index.of(axis) for axis in axes)
    x = Buffer.temp("x", DType.F32, shape)
    buffers = (Buffer("x", DType.F32, shape, x.strides, Role.INPUT, "0"),) + tuple(
        Buffer.temp(name, DType.F32, shape) for name in ("t0", "out")
    )

    def kernel(number: int, op: str, source: str, target: str) -> Kernel:
        stage = Stage(axes, target, at, Op(op, (Load(source, at),)))
        call = Call(f"aten.{op}.default", (Ref(source),), results=(target,))
        return Kernel(f"k{number}", Stages((stage,)), op, (call,), lines=(5 + number,))

    return Program(buffers, (kernel(0, "exp", "x", "t0"), kernel(1, "tanh", "t0", "out")), ("out",))


def test_the_compiler_coder_does_what_the_action_says(program: Program) -> None:
    coder = CompilerCoder(H200)
    action = parse("fuse k0 and k1")
    after = coder.rewrite(program, action)
    assert after == apply(program, action, H200) and len(after.kernels) == 1
    assert coder.rewrite(program, action, [Feedback("wrong_result", "norm 0.3")]) == after, "deterministic"
    assert coder.tries == 1


def test_the_compiler_coder_passes_on_why_an_action_does_not_apply(program: Program) -> None:
    with pytest.raises(IllegalAction, match="k9"):
        CompilerCoder().rewrite(program, parse("fuse k0 and k9"))


def test_an_answer_becomes_the_implementation_and_the_spec_stays(program: Program) -> None:
    after = with_source(program, "k0", GOOD)
    before, kernel = program.kernel("k0"), after.kernel("k0")
    assert isinstance(kernel.impl, Source) and kernel.impl.function == "k0"
    assert (kernel.spec, kernel.calls, kernel.reads, kernel.writes) == (
        before.spec, before.calls, before.reads, before.writes,
    )  # fmt: skip
    assert isinstance(after.kernel("k1").impl, Library), "only that region changes"


def test_a_function_over_other_buffers_is_refused(program: Program) -> None:
    with pytest.raises(CoderError, match="the kernel has 2 buffers"):
        with_source(program, "k0", GOOD.replace("(x, t0)", "(x)"))


def test_the_scripted_coder_answers_in_order_and_hears_what_became_of_it(program: Program) -> None:
    coder = ScriptedCoder(["no code", GOOD], tries=2)
    tile = Action("tile", ("k0",))
    with pytest.raises(CoderError, match="holds no code"):
        coder.rewrite(program, tile)
    heard = Feedback("build_error", "The answer holds no code")
    assert isinstance(coder.rewrite(program, tile, [heard]).kernel("k0").impl, Source)
    assert coder.heard == [heard]
    with pytest.raises(CoderError, match="no answer left"):
        coder.rewrite(program, tile)


def test_the_scripted_coder_writes_one_kernel_at_a_time(program: Program) -> None:
    with pytest.raises(CoderError, match="not the 2 of this action"):
        ScriptedCoder([GOOD]).rewrite(program, Action("fuse", ("k0", "k1")))
