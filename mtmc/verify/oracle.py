"""The float64 oracle: the reference module run in double precision on the same inputs.

Module state and inputs are cast up, and a dispatch mode keeps operations that name a lower floating dtype
(``x.float()``, ``zeros(dtype=torch.float32)``, casts in an exported bf16 graph) from rounding in between. Random
operations draw in their own dtype, since a generator gives other numbers in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from mtmc.problem.tree import bytes_of, map_tensors, tensors
from mtmc.verify import state

LOW = (torch.float32, torch.float16, torch.bfloat16)
DRAWS = frozenset(
    f"aten::{name}{end}"
    for name in ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand",
                 "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "rrelu_with_noise", "uniform")
    for end in ("", "_")
)  # fmt: skip
"""Operations that draw, and whose draws depend on their dtype."""


class InDouble(TorchDispatchMode):
    """Every operation in float64, whatever lower floating dtype the program names."""

    def __init__(self, drawn: torch.dtype) -> None:
        super().__init__()
        self.drawn = drawn

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch would import dynamo, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.native_dropout.default:
            x, p, train = args
            _, mask = func(torch.ones_like(x, dtype=self.drawn), p, train)
            return x * mask / (1 - p) if p < 1 else torch.zeros_like(x), mask
        if func.name().partition(".")[0] in DRAWS:
            return self._draw(func, args, kwargs)
        up = lambda x: torch.float64 if isinstance(x, torch.dtype) and x in LOW else x  # noqa: E731
        if func.name().startswith("aten::_assert_tensor_metadata"):
            return None
        args, kwargs = tree_map(up, (args, kwargs))
        # A factory without a dtype follows the default, which is float64 here; a stray low tensor is cast up.
        args, kwargs = tree_map(_raised, (args, kwargs)) if "_" != func.name()[-1:] else (args, kwargs)
        return func(*args, **kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        low = lambda x: x.to(self.drawn) if isinstance(x, torch.Tensor) and x.dtype is torch.float64 else x  # noqa: E731
        if kwargs.get("dtype") is torch.float64 or (kwargs.get("dtype") is None and "dtype" in _arguments(func)):
            kwargs = {**kwargs, "dtype": self.drawn}
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            drawn = low(args[0])
            func(drawn, *args[1:], **kwargs)
            return args[0].copy_(drawn)
        return tree_map(_raised, func(*tree_map(low, args), **tree_map(low, kwargs)))


def _raised(x: Any) -> Any:
    return x.to(torch.float64) if isinstance(x, torch.Tensor) and x.dtype in LOW else x


def _arguments(func: Any) -> set[str]:
    return {argument.name for argument in func._schema.arguments}


@contextmanager
def in_double(drawn: torch.dtype = torch.float32) -> Iterator[None]:
    """Factories and operations give float64 inside this block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble(drawn):
            yield
    finally:
        torch.set_default_dtype(before)


def double_module(module: nn.Module) -> nn.Module:
    """A copy of ``module`` with every floating tensor of its state in float64."""
    twin = copy.deepcopy(module).double()
    raised = {k: v.detach().double() for k, v in state.hidden(twin).items() if v.is_floating_point()}
    state.assign(twin, raised)
    return twin


def double_inputs(inputs: list[Any]) -> list[Any]:
    return map_tensors(inputs, lambda t: t.double() if t.is_floating_point() else t)


def run(module: nn.Module, inputs: list[Any], reseed: Callable[[], None], drawn: torch.dtype) -> tuple[Any, nn.Module]:
    """Outputs of the float64 twin and the twin itself, whose buffers hold the updated state."""
    twin = double_module(module)
    reseed()
    with torch.no_grad(), in_double(drawn):
        return twin(*double_inputs(inputs)), twin


def run_in_parts(
    module: nn.Module, inputs: list[Any], outputs: Any, reseed: Callable[[], None], parts: int, drawn: torch.dtype
) -> Any:
    """The oracle on slices of the leading dim, where that is a batch dim; None where it is not.

    Whether it is one is tested, not assumed: the sliced run in the reference's own precision must reproduce the whole
    run to within 1e-2 of its scale (a sum over the batch, a scan along it or batch statistics would miss by far more).
    The caller makes sure that the module updates no state.
    """
    sizes = {t.shape[0] for t in tensors(inputs) if t.dim()}
    made = list(tensors(outputs))
    if len(sizes) != 1 or any(not t.dim() or t.shape[0] not in sizes for t in made):
        return None
    (batch,) = sizes
    if batch < parts:
        return None
    twin = double_module(module)
    wholes = [torch.empty_like(t, dtype=torch.float64 if t.is_floating_point() else t.dtype) for t in made]
    step = -(-batch // parts)
    for start in range(0, batch, step):
        cut = map_tensors(inputs, lambda t: t[start : start + step] if t.dim() else t)  # noqa: B023
        with torch.no_grad():
            reseed()
            own = list(tensors(module(*cut)))
            for part, whole in zip(own, made, strict=True):
                if not _close(part, whole[start : start + step]):
                    return None
            del own
            reseed()
            with in_double(drawn):
                precise = list(tensors(twin(*double_inputs(cut))))
        for part, whole in zip(precise, wholes, strict=True):
            whole[start : start + step] = part
    position = iter(wholes)
    return map_tensors(outputs, lambda _: next(position))


def wants_parts(inputs: list[Any], outputs: Any, limit: int) -> int:
    """Number of parts that keeps float64 copies of inputs and outputs below ``limit`` bytes each time."""
    return max(1, -(-2 * (bytes_of(inputs) + bytes_of(outputs)) // limit))


def _close(part: torch.Tensor, whole: torch.Tensor) -> bool:
    if part.shape != whole.shape:
        return False
    if not part.is_floating_point():
        return torch.equal(part, whole)
    finite = torch.isfinite(whole)
    scale = torch.where(finite, whole, 0).abs().mean() + torch.finfo(whole.dtype).tiny
    return bool((torch.where(finite, part - whole, 0).abs() <= 1e-2 * (whole.abs() + scale)).all())
