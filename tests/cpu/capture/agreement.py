"""Holds a captured Program against eager PyTorch in two ways: its library calls, and the meaning of its stages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mtmc.capture import capture_module
from mtmc.capture.library import run_kernel, run_program
from mtmc.ir.check import check
from mtmc.ir.index import Dim
from mtmc.ir.interp import run
from mtmc.ir.program import Kernel, Program, Role, Stages


class Fn(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def bindings(program: Program, module: torch.nn.Module, inputs: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    """Tensors for all buffers that are not temporaries, by name."""
    found: dict[str, torch.Tensor] = {}
    for buffer in program.buffers:
        match buffer.role:
            case Role.INPUT:
                found[buffer.name] = inputs[int(buffer.source)]
            case Role.PARAMETER | Role.STATE:
                found[buffer.name] = _attribute(module, buffer.source)
            case Role.CONSTANT if buffer.source.startswith("torch."):
                found[buffer.name] = eval(buffer.source, {"torch": torch, "float": float})
            case Role.CONSTANT:
                found[buffer.name] = _attribute(module, buffer.source)
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def lowered(program: Program) -> list[bool]:
    return [isinstance(kernel.spec, Stages) for kernel in program.kernels]


def assert_agrees(
    module: torch.nn.Module, *inputs: Any, dynamic: Dim | None = None, opaque: int = 0, tolerance: float = 2e-5
) -> Program:
    """Captures, checks and runs; ``opaque`` is how many kernels may stay library calls. The eager run comes last, so
    that nothing captured can depend on it."""
    program = capture_module(module, inputs, dynamic)
    compare(program, module, inputs, tolerance)
    assert lowered(program).count(False) == opaque, [k.op for k in program.kernels if not isinstance(k.spec, Stages)]
    return program


def compare(program: Program, module: torch.nn.Module, inputs: tuple[Any, ...], tolerance: float = 2e-5) -> None:
    check(program)
    tensors = bindings(program, module, inputs)
    dims = {d.name: t.shape[i] for b in program.buffers if (t := tensors.get(b.name)) is not None
            for i, e in enumerate(b.shape) for d in [e.single] if isinstance(d, Dim)}  # fmt: skip
    called = run_program(program, tensors, dims=dims)
    arrays = {name: t.float().numpy() if t.dtype is torch.bfloat16 else t.numpy() for name, t in tensors.items()}

    def library(kernel: Kernel, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        given = {name: torch.from_numpy(np.array(a, order="C")).to(_torch(program, name)) for name, a in values.items()}
        given |= {n: tensors[n] for c in kernel.calls for n in c.refs() if n in tensors and n not in given}
        results = run_kernel(kernel, given, dims=dims)
        return {name: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for name, t in results.items()}

    meant = run(program, {**arrays, **dims}, library, precision="storage")
    eager = copy.deepcopy(module)
    with torch.no_grad():
        result = eager(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    expected = list(result) if isinstance(result, tuple | list) else [result]
    assert program.output_tree == (
        "tensor" if isinstance(result, torch.Tensor) else "list" if isinstance(result, list) else "tuple"
    )
    assert len(expected) == len(program.outputs)
    wanted = dict(zip(program.outputs, expected, strict=True))
    for update in program.updates:
        if program.buffer(update.state).role is Role.STATE:
            wanted[update.value] = _attribute(eager, program.buffer(update.state).source)
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            called[name],
            tensor,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda m, n=name: f"calls, {n}: {m}",
        )
        assert called[name].dtype == tensor.dtype
        loose = tolerance if tensor.dtype not in (torch.bfloat16, torch.float16) else 1e-2
        got = torch.from_numpy(np.array(meant[name])).to(tensor.dtype)
        torch.testing.assert_close(
            got, tensor, rtol=loose, atol=loose, equal_nan=True, msg=lambda m, n=name: f"stages, {n}: {m}"
        )


def _torch(program: Program, name: str) -> torch.dtype:
    return getattr(torch, program.dtype(name).value)
