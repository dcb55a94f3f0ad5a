"""A process in which Triton's interpreter runs rendered files: ``TRITON_INTERPRET`` counts when triton is imported."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from mtmc.codegen.module import render
from mtmc.ir.program import Program, Role
from mtmc.problem.problem import Kind, Problem
from mtmc.verify import interpreter


class InterpreterProcess:
    """Runs the rendered files of Programs, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_start)
        self._folder = folder
        self._count = 0

    def run(self, program: Program, values: Mapping[str, np.ndarray]) -> tuple[str, list[np.ndarray]]:
        """The rendered file and its outputs, as float64 arrays where they are floats. ``values``: by buffer name."""
        source = render(program, Problem(kind=Kind.MODULE, name="program")).source
        self._count += 1
        path = self._folder / f"rendered_{self._count}.py"
        path.write_text(source)
        inputs = sorted((b for b in program.buffers if b.role is Role.INPUT), key=lambda buffer: int(buffer.source))
        state = [b for b in program.buffers if b.role in (Role.PARAMETER, Role.STATE)]
        arguments = [(np.asarray(values[b.name]), b.dtype.value) for b in inputs]
        parameters = {b.source: (np.asarray(values[b.name]), b.dtype.value) for b in state}
        return source, self._pool.submit(_run, str(path), arguments, parameters).result()

    def close(self) -> None:
        self._pool.shutdown()


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    interpreter.repair()


def _run(
    path: str, arguments: list[tuple[np.ndarray, str]], parameters: dict[str, tuple[np.ndarray, str]]
) -> list[np.ndarray]:
    import torch

    def tensor(value: np.ndarray, dtype: str) -> torch.Tensor:
        return torch.from_numpy(value.copy()).to(getattr(torch, dtype))

    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        model = module.ModelNew()
        model.load_state_dict({name: tensor(*value) for name, value in parameters.items()})
        found = model(*(tensor(*value) for value in arguments))
    outputs = [found] if isinstance(found, torch.Tensor) else found
    return [out.double().numpy() if out.is_floating_point() else out.numpy() for out in outputs]
