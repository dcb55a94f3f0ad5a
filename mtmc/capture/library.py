"""Running the library calls of a kernel or a whole Program in PyTorch, and the arguments of a call as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mtmc.errors import CaptureError
from mtmc.ir.index import Index
from mtmc.ir.program import Arg, Call, Kernel, Program, Ref, Token

DEVICE = Token("device")
"""Stands for the device that the program runs on."""


def argument(value: Any) -> Arg:
    """A traced non-tensor argument as data."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case torch.device():
            return DEVICE
        case torch.dtype() | torch.layout() | torch.memory_format():
            return Token(str(value))
    raise CaptureError(f"an argument of type {type(value).__name__} can't be carried into a generated file")


def run_call(call: Call, tensors: dict[str, torch.Tensor], device: str, dims: Mapping[str, int]) -> None:
    """Runs one call and adds its named results to ``tensors``."""

    def live(arg: Arg) -> Any:
        match arg:
            case Ref(name):
                return tensors[name]
            case Token(text):
                return torch.device(device) if arg == DEVICE else getattr(torch, text.removeprefix("torch."))
            case Index():
                return arg.evaluate(dims)
            case tuple():
                return [live(item) for item in arg]
        return arg

    namespace, name, overload = call.target.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    out = function(*[live(arg) for arg in call.args], **{key: live(arg) for key, arg in call.kwargs})
    results = list(out) if isinstance(out, tuple | list) else [out]
    for key, tensor in zip(call.results, results, strict=False):
        if key is not None:
            tensors[key] = tensor


def run_kernel(
    kernel: Kernel, tensors: Mapping[str, torch.Tensor], device: str = "cpu", dims: Mapping[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """The buffers that a kernel writes, computed by its library calls."""
    known = dict(tensors)
    for call in kernel.calls:
        run_call(call, known, device, dims or {})
    return {name: known[name] for name in kernel.writes}


def run_program(
    program: Program, tensors: Mapping[str, torch.Tensor], device: str = "cpu", dims: Mapping[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """All buffers after the library calls of a Program. ``tensors`` holds inputs, parameters, states and constants by
    buffer name; nothing in it is changed, new states are under the names in ``Program.updates``."""
    known = dict(tensors)
    for kernel in program.kernels:
        known.update(run_kernel(kernel, known, device, dims))
    return known
