from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mtmc.ir.expr import Contract, walk
from mtmc.ir.program import Stages
from tests.cpu.capture.agreement import Fn, assert_agrees

torch.manual_seed(0)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((4,), (4,)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 6)),
        ((3, 4), (4, 1)),
        ((3, 1), (1, 5)),
        ((2, 2, 3, 4), (4,)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    assert_agrees(Fn(torch.matmul), torch.randn(left), torch.randn(right))


def test_transposed_operands_are_maps() -> None:
    program = assert_agrees(Fn(lambda a, b: a.T @ b.T), torch.randn(4, 3), torch.randn(5, 4))
    (kernel,) = program.kernels
    assert [call.view for call in kernel.calls] == [True, True, False]
    assert kernel.reads == ("args_0", "args_1")


def test_other_products() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    assert_agrees(Fn(lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2)), a, b, c)
    assert_agrees(Fn(torch.mv), a, torch.randn(4))
    assert_agrees(Fn(torch.outer), torch.randn(3), torch.randn(4))
    assert_agrees(Fn(torch.bmm), torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    assert_agrees(
        Fn(lambda x, y, z: torch.baddbmm(z, x, y)), torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    )


@pytest.mark.parametrize(
    "equation", ["bik,bkj->bij", "bijl,lk->bijk", "bhid,bhjd->bhij", "i,j->ij", "bn,bn->b", "ij,jk"]
)
def test_einsum(equation: str) -> None:
    sizes = {letter: 2 + i for i, letter in enumerate(sorted(set(equation) - set(",->")))}
    inputs = [torch.randn([sizes[x] for x in term]) for term in equation.split("->")[0].split(",")]
    assert_agrees(Fn(lambda a, b: torch.einsum(equation, a, b)), *inputs)


def test_linear_is_one_stage() -> None:
    program = assert_agrees(nn.Linear(6, 5), torch.randn(2, 3, 6))
    (kernel,) = program.kernels
    assert isinstance(kernel.spec, Stages)
    (stage,) = kernel.spec.stages
    assert [axis.name for axis in stage.axes] == ["i0", "i1", "i2"]
    (contract,) = [node for node in walk(stage.body) if isinstance(node, Contract)]
    assert [axis.name for axis in contract.axes] == ["k"]
    assert_agrees(nn.Linear(6, 5, bias=False), torch.randn(6))
    assert_agrees(nn.Linear(6, 5).bfloat16(), torch.randn(3, 6).bfloat16())


def test_attention_by_hand() -> None:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        s = (q @ k.transpose(-2, -1)) * 0.5
        return s.masked_fill(torch.ones(5, 5).tril() == 0, float("-inf")).softmax(-1) @ v

    assert_agrees(Fn(attention), *(torch.randn(2, 3, 5, 4) for _ in range(3)))


@pytest.mark.parametrize(
    ("kind", "arguments", "shape"),
    [
        (nn.Conv1d, dict(kernel_size=3, padding=1), (2, 4, 9)),
        (nn.Conv2d, dict(kernel_size=3, stride=2, padding=1), (2, 4, 7, 8)),
        (nn.Conv2d, dict(kernel_size=(1, 3), dilation=2), (2, 4, 7, 8)),
        (nn.Conv3d, dict(kernel_size=2), (1, 4, 4, 5, 3)),
    ],
)
def test_depthwise_convolution(kind: type[nn.Module], arguments: dict[str, object], shape: tuple[int, ...]) -> None:
    assert_agrees(kind(4, 4, groups=4, **arguments), torch.randn(shape))
    assert_agrees(kind(4, 8, groups=4, bias=False, **arguments), torch.randn(shape))
    assert_agrees(kind(4, 8, **arguments), torch.randn(shape), opaque=1)


def test_pointwise_convolution_is_a_contraction() -> None:
    program = assert_agrees(nn.Conv2d(4, 6, 1), torch.randn(2, 4, 5, 5))
    spec = program.kernels[0].spec
    assert isinstance(spec, Stages) and any(isinstance(n, Contract) for n in walk(spec.stages[0].body))


POOLS = {
    "max1": (nn.MaxPool1d(3, 2, 1, dilation=2), (2, 3, 12)),
    "max2": (nn.MaxPool2d(3, 2, 1), (2, 3, 8, 7)),
    "max2_ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), (2, 3, 8, 8)),
    "max3": (nn.MaxPool3d(2), (1, 2, 4, 6, 5)),
    "avg1": (nn.AvgPool1d(3, 1, 1), (2, 3, 9)),
    "avg2": (nn.AvgPool2d(2), (2, 3, 6, 5)),
    "avg2_out": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 7, 7)),
    "avg3": (nn.AvgPool3d(2, 1), (1, 2, 3, 4, 4)),
    "global": (nn.AdaptiveAvgPool2d(1), (2, 3, 6, 5)),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 2)), (2, 3, 6, 4)),
    "adaptive_max": (nn.AdaptiveMaxPool2d(2), (2, 3, 6, 4)),
    "unbatched": (nn.MaxPool2d(2), (3, 6, 6)),
    "global3": (nn.AdaptiveAvgPool3d((1, 1, 1)), (2, 3, 2, 3, 4)),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name: str) -> None:
    module, shape = POOLS[name]
    assert_agrees(module, torch.randn(shape) - 3)


def test_uneven_adaptive_pooling_stays_library() -> None:
    assert_agrees(nn.AdaptiveAvgPool2d(3), torch.randn(1, 2, 7, 7), opaque=1)
    assert_agrees(Fn(lambda x: F.max_pool2d(x, 2, return_indices=True)), torch.randn(1, 2, 6, 6), opaque=1)
