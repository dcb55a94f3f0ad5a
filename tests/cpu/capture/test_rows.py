from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mtmc.ir.expr import Reduce, walk
from mtmc.ir.program import Program, Stages
from tests.cpu.capture.agreement import Fn, assert_agrees

torch.manual_seed(0)
X = torch.randn(4, 6, 10)

ROWS = {
    "sum": lambda x: x.sum(1),
    "sum_all": lambda x: x.sum(),
    "sum_keep": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(dim=-1),
    "mean_all": torch.mean,
    "prod": lambda x: x.prod(2),
    "amax": lambda x: x.amax((1, 2)),
    "max_dim": lambda x: x.max(dim=1),
    "min_values": lambda x: x.min(dim=2).values,
    "max_all": torch.max,
    "argmax": lambda x: x.argmax(1),
    "argmin_all": torch.argmin,
    "any": lambda x: (x > 2).any(1),
    "all": lambda x: (x > -2).all(),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std((0, 1), correction=0),
    "var_mean": lambda x: torch.var_mean(x, 2),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "layer_norm": lambda x: F.layer_norm(x, (6, 10)),
    "rms_norm": lambda x: F.rms_norm(x, (10,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "instance_norm": lambda x: F.instance_norm(x),
    "norm2": lambda x: x.norm(),
    "norm1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm_inf": lambda x: x.norm(float("inf"), 2),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=(0, 1), keepdim=True),
    "normalize": lambda x: F.normalize(x, p=2, dim=1),
    "int_sum": lambda x: (x > 0).sum(1),
    "half_sum": lambda x: x.half().sum(1),
    "sum_dtype": lambda x: x.sum(1, dtype=torch.float64),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(2),
    "cummax": lambda x: x.cummax(1).values,
    "reverse_cumsum": lambda x: x.flip(1).cumsum(1).flip(1),
    "int_cumsum": lambda x: (x > 0).cumsum(0),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str) -> None:
    assert_agrees(Fn(ROWS[name]), X)


def reductions(program: Program) -> int:
    stages = [s for k in program.kernels if isinstance(k.spec, Stages) for s in k.spec.stages]
    return len({node for s in stages for node in walk(s.body) if isinstance(node, Reduce)})


def test_softmax_needs_one_pass() -> None:
    program = assert_agrees(Fn(ROWS["softmax"]), X)
    (kernel,) = program.kernels
    assert isinstance(kernel.spec, Stages)
    assert len(kernel.spec.stages) == 3 and len(kernel.spec.locals) == 2
    bodies = [node for stage in kernel.spec.stages for node in walk(stage.body) if isinstance(node, Reduce)]
    assert {(node.monoid, node.part) for node in bodies} == {("maxsumexp", 0), ("maxsumexp", 1)}


LOSSES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "mse_sum": lambda x, y: F.mse_loss(x, y, reduction="sum"),
    "l1_none": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "kl": lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "bce": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "bce_logits": F.binary_cross_entropy_with_logits,
    "hinge": lambda x, y: torch.mean(torch.clamp(1 - x * y.sign(), min=0)),
    "cosine": lambda x, y: F.cosine_similarity(x, y, dim=1),
    "triplet": lambda x, y: F.triplet_margin_loss(x, y, x * y),
    "margin_ranking": lambda x, y: F.margin_ranking_loss(x, y, y.sign()),
    "pairwise": lambda x, y: F.pairwise_distance(x, y),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    assert_agrees(Fn(LOSSES[name]), torch.randn(8, 10), torch.randn(8, 10))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(reduction: str) -> None:
    target = torch.tensor([1, 4, -100, 0])
    assert_agrees(Fn(lambda x, t: F.cross_entropy(x, t, reduction=reduction)), torch.randn(4, 5), target)
    assert_agrees(Fn(lambda x, t: F.nll_loss(x.log_softmax(1), t, reduction=reduction)), torch.randn(4, 5), target)
    assert_agrees(
        Fn(lambda x, t: F.cross_entropy(x, t, reduction=reduction)), torch.randn(4, 5, 3), torch.randint(0, 5, (4, 3))
    )
    assert_agrees(Fn(lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1)), torch.randn(4, 5), target, opaque=1)


@pytest.mark.parametrize("shape", [(8, 6), (4, 6, 5), (2, 6, 3, 4), (2, 6, 2, 3, 4)])
def test_batch_norm_updates_its_state(shape: tuple[int, ...]) -> None:
    kinds = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    module = kinds[len(shape)](6, momentum=0.3)
    nn.init.uniform_(module.weight)
    nn.init.uniform_(module.bias)
    program = assert_agrees(module, torch.randn(shape) * 2 + 1)
    assert [update.state for update in program.updates] == ["running_mean", "running_var", "num_batches_tracked"]
    assert assert_agrees(module.eval(), torch.randn(shape)).updates == ()


def test_norm_modules() -> None:
    x = torch.randn(2, 6, 4, 4)
    assert_agrees(nn.GroupNorm(2, 6), x)
    assert_agrees(nn.InstanceNorm2d(6, affine=True), x)
    assert_agrees(nn.LayerNorm((4, 4)), x)
    assert_agrees(nn.RMSNorm(4, eps=1e-5), x)


def test_row_on_views() -> None:
    assert_agrees(Fn(lambda x: x.transpose(1, 2)[:, 2:7].softmax(1)), X)
    assert_agrees(Fn(lambda x: F.layer_norm(x.permute(2, 0, 1), (6,))), X)
    assert_agrees(Fn(lambda x: x.reshape(24, 10).reshape(8, 3, 2, 5).sum((1, 3))), X)


def test_extent_one() -> None:
    x = torch.randn(3, 1, 4)
    for function in (
        lambda x: x.sum(1),
        lambda x: x.softmax(1),
        lambda x: x.max(1),
        lambda x: x.cumsum(1),
        lambda x: x.logsumexp(1),
    ):
        assert_agrees(Fn(function), x)
    assert_agrees(Fn(lambda x: F.group_norm(x, 1)), torch.randn(1, 4, 1))
    assert_agrees(Fn(lambda x: x.sum() + x.softmax(0)), torch.tensor(3.0))
