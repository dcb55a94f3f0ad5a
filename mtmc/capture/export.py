"""From a module to a graph of ATen operations by torch.export, without computing or allocating anything large.

The graph is export's training IR: composite operations (linear, softmax, batch_norm, attention) are still whole, and
in-place operations are still in place; :mod:`mtmc.capture.lower` makes them explicit. Modules and inputs are built
under ``FakeTensorMode``; only a constructor that needs values is run for real, on the CPU.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram

from mtmc.capture.rnn import whole_rnns
from mtmc.capture.sources import is_user_frame, lines_recorded
from mtmc.errors import CaptureError, MtmcError
from mtmc.ir.index import Dim
from mtmc.log import get_logger
from mtmc.problem.module import batch_shapes
from mtmc.problem.problem import Kind, Problem

log = get_logger("capture")


@dataclass(frozen=True)
class Exported:
    """A traced program and where its source lies."""

    program: ExportedProgram
    file: str | None
    """The user's file; None where any file outside torch counts."""


def export_problem(problem: Problem, device: str = "cpu") -> Exported:
    """Trace a problem's reference, in training mode and without gradients, on fake tensors of ``device``.

    Raises:
        CaptureError: torch.export refuses the program; carries the user's line.
        ProblemError: the constructor or ``get_inputs`` raises by itself.
    """
    if problem.kind is Kind.MODULE:
        from mtmc.problem.module import load_program

        return Exported(load_program(problem), None)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    module = _build(problem, device, mode)
    _register_tensors(module)
    with mode:
        inputs = problem.make_inputs(device)
    file = source_file(problem)
    return Exported(_trace(module, tuple(inputs), None, file), file)


def export_module(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_batch: Dim | None = None) -> Exported:
    """Trace a module as it stands (training flag included); its parameters are not copied.

    With ``dynamic_batch``, dimension 0 of every tensor input that has the first one's size there becomes that dim.
    """
    shapes = None
    if dynamic_batch is not None:
        shapes = batch_shapes(module, inputs, dynamic_batch.name, dynamic_batch.limit)
        if shapes is None:
            raise CaptureError("no input has a batch dimension; leave out the dynamic batch")
    return Exported(_trace(module, inputs, shapes, None), None)


def source_file(problem: Problem) -> str:
    """The file name that the problem's code was compiled under."""
    from mtmc.problem import source

    return str(source.load(problem).__file__)


def _build(problem: Problem, device: str, mode: FakeTensorMode) -> torch.nn.Module:
    """The module on fake tensors; built for real and then faked where its constructor looks at values."""
    from mtmc.problem import source

    namespace = source.load(problem)
    try:
        with mode, torch.device(device), torch.no_grad():
            module = namespace.Model(*problem.init_inputs(device))
    except Exception as error:  # anything that goes wrong under fake tensors is tried again for real
        log.debug("%s needs real tensors to be built: %s", problem.name, error)
        module = problem.build_module("cpu")
        _fake(module, device, mode)
    return module


def _fake(module: torch.nn.Module, device: str, mode: FakeTensorMode) -> None:
    """Replaces every parameter, buffer and plain tensor attribute by a fake of it."""

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    done: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers, part.__dict__):
            for name, tensor in list(table.items()):
                if isinstance(tensor, torch.Tensor):
                    fake = done.setdefault(id(tensor), faked(tensor))
                    if isinstance(tensor, torch.nn.Parameter):
                        done[id(tensor)] = fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
                    table[name] = fake


def _register_tensors(module: torch.nn.Module) -> None:
    """Plain tensor attributes become registered buffers: export follows assignments only to those."""
    for part in module.modules():
        for name, tensor in list(vars(part).items()):
            if isinstance(tensor, torch.Tensor):
                delattr(part, name)
                part.register_buffer(name, tensor, persistent=False)


def _trace(module: torch.nn.Module, inputs: tuple[Any, ...], shapes: Any, file: str | None) -> ExportedProgram:
    try:
        with torch.no_grad(), whole_rnns(), lines_recorded(file), _quiet():
            return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
    except MtmcError:
        raise
    except Exception as error:  # torch.export raises dozens of kinds; all mean the same to the user
        raise _refusal(error, file) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Export warns about assigned attributes and the like; what matters becomes an error of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _refusal(error: Exception, file: str | None) -> CaptureError:
    """One sentence with the innermost user line."""
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    quoted = re.findall(r'File "([^"]+)", line (\d+)', str(error))
    frames += [(name, int(number)) for name, number in quoted]
    own = [(name, line) for name, line in frames if is_user_frame(name, file)]
    where, line = own[-1] if own else (file, None)
    text = next((row.strip() for row in str(error).splitlines() if row.strip()), "no message")
    reason = text if len(text) <= 200 else text[:200] + "..."
    return CaptureError(
        f"torch.export can't trace this program ({type(error).__name__}: {reason.rstrip('.')}). "
        "Data-dependent control flow and Python side effects have to move out of forward.",
        file=where,
        line=line,
    )
