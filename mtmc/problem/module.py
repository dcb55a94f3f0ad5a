"""An ``nn.Module`` with example inputs as a problem: a folder with the exported program, never a pickled class.

``program.pt2`` (torch.export.save) holds graph and state; ``inputs.pt`` holds the example inputs and is read with
``weights_only``, so opening a folder runs nobody's code.
"""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import torch

from mtmc.errors import ProblemError
from mtmc.problem.problem import Kind, Problem
from mtmc.problem.tree import map_tensors, to_device

PROGRAM = "program.pt2"
INPUTS = "inputs.pt"


def save_module(
    module: torch.nn.Module,
    inputs: list[Any] | tuple[Any, ...],
    folder: Path,
    *,
    batch_limit: int = 0,
) -> Problem:
    """Export ``module`` on ``inputs`` (positional) into ``folder`` and return the Problem that reads it back.

    Args:
        batch_limit: dimension 0 of the inputs may be anything from 1 to this; 0: only what the examples have.

    Raises:
        ProblemError: torch.export refuses the module, or an input is not made of tensors and plain values.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = type(module).__name__
    dynamic_shapes = None
    if batch_limit:
        dynamic_shapes = batch_shapes(module, tuple(inputs), "batch", batch_limit)
        if dynamic_shapes is None:
            raise ProblemError(f"No input of {name} has a batch dimension; leave out the dynamic batch.")
    try:
        with torch.no_grad():
            program = torch.export.export(module, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # torch.export raises dozens of kinds; all mean that the module can't be taken
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ProblemError(f"{name} can't be exported by torch.export: {reason[0]}.") from error
    torch.export.save(program, folder / PROGRAM)
    torch.save(map_tensors(list(inputs), lambda t: t.detach().cpu()), folder / INPUTS)
    return Problem(
        kind=Kind.MODULE, name=name, path=str(folder.resolve()), digest=_digest(folder), batch_limit=batch_limit
    )


def batch_shapes(module: torch.nn.Module, inputs: tuple[Any, ...], name: str, limit: int) -> Any:
    """What torch.export takes as ``dynamic_shapes``: dimension 0 of every tensor input that has the first one's size
    there is one dim between 1 and ``limit``. None where no input has a dimension."""
    first = next((x.shape[0] for x in inputs if isinstance(x, torch.Tensor) and x.dim()), None)
    if first is None:
        return None
    dim = torch.export.Dim(name, min=1, max=limit)
    each: tuple[Any, ...] = tuple(
        {0: dim} if isinstance(x, torch.Tensor) and x.dim() and x.shape[0] == first else None for x in inputs
    )
    named = [p for p in inspect.signature(module.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    # what *args takes is one nested entry
    return each if len(named) >= len(inputs) else (*each[: len(named)], each[len(named) :])


def load_program(problem: Problem) -> torch.export.ExportedProgram:
    """The exported program as it was saved."""
    path = Path(problem.path) / PROGRAM
    if not path.is_file():
        raise ProblemError(f"The folder {problem.path} holds no {PROGRAM}; save the module again.")
    return torch.export.load(path)


def build_module(problem: Problem, device: str) -> torch.nn.Module:
    """The exported program as a callable module on ``device``; its state_dict has the original names."""
    from torch.export.passes import move_to_device_pass

    return move_to_device_pass(load_program(problem), device).module()


def make_inputs(problem: Problem, device: str, seed: int) -> list[Any]:
    """Example inputs for seed 0, their elements permuted for every other seed."""
    path = Path(problem.path) / INPUTS
    if not path.is_file():
        raise ProblemError(f"The folder {problem.path} holds no {INPUTS}; save the module again.")
    inputs = to_device(torch.load(path, weights_only=True), device)
    if seed == 0:
        return inputs
    torch.manual_seed(seed)
    return map_tensors(inputs, _permuted)


def _permuted(tensor: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(tensor.numel(), device=tensor.device)
    return torch.empty_like(tensor).copy_(tensor.flatten()[order].view(tensor.shape))


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in (PROGRAM, INPUTS):
        with (folder / name).open("rb") as file:
            while chunk := file.read(1 << 24):
                digest.update(chunk)
    return digest.hexdigest()
