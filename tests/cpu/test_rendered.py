"""Random Programs, random legal actions: the rendered Triton in the interpreter against the IR's numpy meaning."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtmc.actions import apply, encode, propose, split
from mtmc.actions.rewriting import scheduled
from mtmc.codegen.module import render
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction, IRError
from mtmc.ir.interp import run as interpret
from mtmc.ir.printer import print_program
from mtmc.ir.program import Library, Program, Role, Tile
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType
from mtmc.problem.problem import Kind, Problem
from mtmc.verify import interpreter as triton_interpreter
from tests.strategies import programs, values

EXAMPLES = int(os.environ.get("RENDERED_EXAMPLES", "0"))
"""A bigger budget for a night: ``RENDERED_EXAMPLES=5000 pytest tests/cpu/test_rendered.py``."""
ULP = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}


def budget(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


# ---- the process with the interpreter -------------------------------------------------------------------------


def start_interpreter() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    triton_interpreter.repair()


def run_interpreted(path: str, arrays: dict[str, tuple[np.ndarray, str]], inputs: list[str]) -> list[np.ndarray]:
    """The outputs of the file's ``ModelNew`` as float64 (or int64) arrays. ``arrays``: values and torch dtype of
    parameters, by attribute path, and of inputs, by name."""
    import torch

    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensors = {name: torch.from_numpy(value).to(getattr(torch, dtype)) for name, (value, dtype) in arrays.items()}
    with torch.no_grad():
        model = module.ModelNew()
        model.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in inputs})
        found = model(*(tensors[name] for name in inputs))
    outputs = [found] if isinstance(found, torch.Tensor) else found
    return [out.numpy() if out.dtype is torch.int64 else out.double().numpy() for out in outputs]


@cache
def interpreter() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=start_interpreter)


@pytest.fixture(scope="module", autouse=True)
def stop_interpreter() -> Iterator[None]:
    yield
    interpreter().shutdown()


# ---- what a Program becomes -----------------------------------------------------------------------------------


def all_tiled(program: Program) -> Program:
    """What no action touched with its default schedule: these Programs have no PyTorch calls to fall back on."""
    kernels = tuple(
        scheduled(program, kernel, H200) if isinstance(kernel.impl, Library) else kernel for kernel in program.kernels
    )
    return replace(program, kernels=kernels)


def with_inputs_only(program: Program) -> Program:
    """A parameter cannot have a dynamic dim: it becomes an argument."""
    buffers, position = [], sum(buffer.role is Role.INPUT for buffer in program.buffers)
    for buffer in program.buffers:
        if buffer.role is Role.PARAMETER and any(extent.dims for extent in buffer.shape):
            buffer = replace(buffer, role=Role.INPUT, source=str(position))
            position += 1
        buffers.append(buffer)
    return replace(program, buffers=tuple(buffers))


def candidates(program: Program) -> list[Any]:
    """Legal actions, and two kinds that are proposed for larger sizes only."""
    found = list(propose(program, H200).actions)
    for kernel in program.kernels:
        for action in (*(split.action(kernel.id, parts) for parts in (2, 3)), encode.action(kernel.id, "split")):
            try:
                apply(program, action)
            except IllegalAction:
                continue
            found.append(action)
    return found


SMALL = {
    "pointwise": ((16,), (64,)),
    "row": ((1, 4), (2, 8), (4, 16), (16, 2)),
    "scan": ((1, 4), (2, 8), (8, 2)),
    "matmul": ((16, 16, 16), (16, 32, 16)),
}


def small_tiles(program: Program, draw: Any) -> Program:
    """Schedules that cut even these small extents into several tiles."""
    kernels = []
    for kernel in program.kernels:
        if isinstance(kernel.impl, Tile) and draw(st.booleans()):
            old = kernel.impl.schedule
            tile = draw(st.sampled_from(SMALL[old.form]))
            loop, persistent = old.form in ("row", "scan"), old.form == "matmul" and draw(st.booleans())
            new = Schedule(
                old.form, tile, loop=loop, group=draw(st.sampled_from((1, 2))), order=draw(st.integers(0, 1)),
                persistent=persistent, dot=old.dot, separate=old.separate,
            )  # fmt: skip
            kernel = replace(kernel, impl=Tile(new))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels))


# ---- the comparison -------------------------------------------------------------------------------------------

_numbers = count()


def assert_rendered_means(before: Program, after: Program, folder: Path, dims: dict[str, int] | None = None) -> None:
    """The file of ``after`` computes what ``before`` means: the error may be a few times that of computing ``before``
    step by step in its own types, or a few units in the last place of the result's scale."""
    source = render(after, Problem(kind=Kind.MODULE, name="random")).source
    given_values = values(before, dims=dims)
    inputs = sorted((b for b in before.buffers if b.role is Role.INPUT), key=lambda buffer: int(buffer.source))
    arrays = {
        buffer.name if buffer.role is Role.INPUT else buffer.source: (given_values[buffer.name], buffer.dtype.value)
        for buffer in before.buffers
        if buffer.role is not Role.TEMP
    }
    path = folder / f"rendered_{next(_numbers)}.py"
    path.write_text(source)
    found = interpreter().submit(run_interpreted, str(path), arrays, [b.name for b in inputs]).result()
    with np.errstate(all="ignore"):
        exact, rounded = interpret(before, given_values), interpret(before, given_values, precision="storage")
    for name, got in zip(before.outputs, found, strict=True):
        wanted, own = exact[name], rounded[name].astype(np.float64)
        where = f"\n{print_program(after)}\n{source}"
        assert got.shape == wanted.shape, where
        if before.dtype(name) is DType.I64:  # equal values and rounding decide between positions
            (read,) = before.producer(name).reads
            row, own = exact[read], rounded[read].astype(np.float64)
            got = np.take_along_axis(row, got[..., None], -1)[..., 0]
            wanted, own = row.max(-1), np.take_along_axis(row, rounded[name][..., None], -1)[..., 0]
            scale, dtype = np.abs(row).max(initial=1.0), before.dtype(read)
        else:
            scale, dtype = np.abs(wanted).max(initial=1.0), before.dtype(name)
        allowed = max(3 * np.abs(own - wanted).max(initial=0.0), 8 * ULP[dtype] * scale)
        assert np.isfinite(got).all() and np.abs(got - wanted).max(initial=0.0) <= allowed, (
            f"{name}: error {np.abs(got - wanted).max():.2e}, allowed {allowed:.2e}{where}"
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rendered")


def after_actions(program: Program, data: st.DataObject) -> Program:
    for _ in range(data.draw(st.integers(0, 3))):
        program = apply(program, data.draw(st.sampled_from(candidates(program))))
    return small_tiles(all_tiled(program), data.draw)


@budget(80)
@given(programs(), st.data())
def test_random_actions_keep_the_meaning(folder: Path, program: Program, data: st.DataObject) -> None:
    assert_rendered_means(program, after_actions(program, data), folder)


@budget(30)
@given(programs(dynamic=True), st.data(), st.integers(1, 9))
def test_dynamic_first_extent(folder: Path, program: Program, data: st.DataObject, size: int) -> None:
    program = with_inputs_only(program)
    assert_rendered_means(program, after_actions(program, data), folder, {"B": size})
