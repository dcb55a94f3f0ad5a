"""ATen calls as Python text."""

from __future__ import annotations

import math

import pytest

from mtmc.codegen.library import render_arg, render_calls
from mtmc.errors import CodegenError
from mtmc.ir.index import Dim, Index
from mtmc.ir.program import Call, Kernel, Opaque, Ref, Token


@pytest.mark.parametrize(
    ("arg", "text"),
    [
        (Ref("x"), "x"),
        (Token("torch.float32"), "torch.float32"),
        (None, "None"),
        (True, "True"),
        (3, "3"),
        (0.1, "0.1"),
        (1e-05, "1e-05"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
        (math.nan, 'float("nan")'),
        ("mean", "'mean'"),
        ((1, (2, Ref("y")), ()), "[1, [2, y], []]"),
        (Index.of(Dim("B")) * 4, "B * 4"),
        (Index.of(7), "7"),
    ],
)
def test_arguments(arg: object, text: str) -> None:
    assert render_arg(arg, lambda name: name) == text  # type: ignore[arg-type]


def kernel(*calls: Call, exports: tuple[str, ...] = ()) -> Kernel:
    return Kernel("k3", Opaque(), "op", calls, exports=exports)


def test_calls_between_have_the_kernel_in_their_names() -> None:
    calls = (
        Call("aten.permute.default", (Ref("x"), (1, 0)), results=("mid",), view=True),
        Call("aten.topk.default", (Ref("mid"), 2), (("largest", False),), results=("values", "places")),
        Call("aten.max.dim", (Ref("mid"), 0), results=("top", None)),
        Call("aten.add_.Tensor", (Ref("state"), Ref("top"))),
    )
    made = kernel(*calls, exports=("values", "places"))
    assert render_calls(made, lambda name: name.replace(".", "_"), made.writes) == [
        "k3_mid = torch.ops.aten.permute.default(x, [1, 0])",
        "values, places = torch.ops.aten.topk.default(k3_mid, 2, largest=False)",
        "k3_top, _ = torch.ops.aten.max.dim(k3_mid, 0)",
        "torch.ops.aten.add_.Tensor(state, k3_top)",
    ]


def test_functions_of_torch_itself() -> None:
    made = kernel(Call("torch.empty", ((2, 3),), results=("y",)), exports=("y",))
    assert render_calls(made, str, made.writes) == ["y = torch.empty([2, 3])"]


def test_a_kernel_without_calls() -> None:
    with pytest.raises(CodegenError, match="PyTorch has no call for it"):
        render_calls(kernel(), str, ())
