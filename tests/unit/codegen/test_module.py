"""The whole rendered file: what it refuses, what it updates, and what it never contains."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mtmc.codegen.module import render
from mtmc.errors import CodegenError
from mtmc.ir.index import Dim, Index
from mtmc.ir.program import Buffer, Call, Kernel, Opaque, Program, Ref, Role, Source, Update
from mtmc.ir.types import DType
from mtmc.problem.problem import Kind, Problem
from tests.unit.codegen.kernels import KERNELS, numbered

FILE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, scale: float = 2.0):
        self.seen += 1
        return self.fc(x) * scale


def get_inputs():
    return [torch.randn(2, 3)]
"""
MODULE = Problem(kind=Kind.MODULE, name="Thing")


def buffer(name: str, *shape: Any, role: Role = Role.TEMP, source: str = "", dtype: DType = DType.F32) -> Buffer:
    return replace(Buffer.temp(name, dtype, tuple(map(Index.of, shape))), role=role, source=source)


def library(number: int, target: str, *args: Any, result: str) -> Kernel:
    call = Call(f"aten.{target}", args, results=(result,))
    return Kernel(f"k{number}", Opaque(), target, (call,), exports=(result,))


def linear(rows: Any = 2) -> Program:
    """What FILE computes, run by PyTorch."""
    buffers = (
        buffer("x", rows, 3, role=Role.INPUT, source="0"),
        buffer("fc.weight", 4, 3, role=Role.PARAMETER, source="fc.weight"),
        buffer("fc.bias", 4, role=Role.PARAMETER, source="fc.bias"),
        buffer("seen", role=Role.STATE, source="seen"),
        buffer("t0", rows, 4),
        buffer("t1", rows, 4),
        buffer("t2"),
    )
    kernels = (
        library(0, "linear.default", Ref("x"), Ref("fc.weight"), Ref("fc.bias"), result="t0"),
        library(1, "mul.Tensor", Ref("t0"), 2.0, result="t1"),
        library(2, "mul.Tensor", Ref("seen"), 2.0, result="t2"),
    )
    return Program(buffers, kernels, ("t1",), (Update("seen", "t2"),), fixed_arguments=((1, 2.0),))


def load(source: str, folder: Path) -> Any:
    path = folder / "new.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("new", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(tmp_path: Path) -> torch.nn.Module:
    source = render(linear(), Problem(name="linear", text=FILE), header="Made by a test.").source
    return load(source, tmp_path).ModelNew()


def test_it_computes_and_updates_its_state(model: torch.nn.Module) -> None:
    x = torch.randn(2, 3)
    model.seen.fill_(3)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.fc(x) * 2.0)
    assert model.seen == 6.0


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.randn(5, 3), r"\(5, 3\) and torch.float32"),
        (torch.randn(2, 3, 1), r"\(2, 3, 1\) and torch.float32"),
        (torch.randn(2, 3, dtype=torch.float64), r"\(2, 3\) and torch.float64"),
        (torch.randn(2, 3).half(), r"\(2, 3\) and torch.float16"),
    ],
)
def test_another_shape_or_type_is_refused(model: torch.nn.Module, x: torch.Tensor, got: str) -> None:
    with torch.no_grad(), pytest.raises(ValueError, match=rf"for x of shape \(2, 3\) and torch.float32, got {got}"):
        model(x)


def test_gradients_are_refused(model: torch.nn.Module) -> None:
    with pytest.raises(RuntimeError, match="call it under torch.no_grad"):
        model(torch.randn(2, 3))
    model.requires_grad_(False)
    assert model(torch.randn(2, 3)).shape == (2, 4)


def test_a_fixed_argument(model: torch.nn.Module) -> None:
    x = torch.randn(2, 3)
    with torch.no_grad():
        model(x, scale=2.0)
        with pytest.raises(ValueError, match=r"for scale = 2.0, got 3.0"):
            model(x, scale=3.0)


def test_strided_inputs_are_made_contiguous(model: torch.nn.Module) -> None:
    x = torch.randn(3, 2).t()
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.fc(x) * 2.0)


def test_a_declared_dim(tmp_path: Path) -> None:
    program = linear(rows=Dim("B", 8))
    model = load(render(program, Problem(name="linear", text=FILE)).source, tmp_path).ModelNew()
    with torch.no_grad():
        assert model(torch.randn(7, 3)).shape == (7, 4)
        with pytest.raises(ValueError, match="B <= 8, got 9"):
            model(torch.randn(9, 3))


def test_a_module_without_a_file(tmp_path: Path) -> None:
    """The same parameter names as the original, so its state loads."""
    model = load(render(linear(), MODULE).source, tmp_path).ModelNew()
    assert set(model.state_dict()) == {"fc.weight", "fc.bias", "seen"}
    assert [name for name, _ in model.named_parameters()] == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize(("tree", "kind"), [("tuple", tuple), ("list", list), ("tensor", torch.Tensor)])
def test_how_results_are_packed(tree: str, kind: type, tmp_path: Path) -> None:
    program = replace(linear(), output_tree=tree)
    model = load(render(program, Problem(name="linear", text=FILE)).source, tmp_path).ModelNew()
    with torch.no_grad():
        found = model(torch.randn(2, 3))
    assert type(found) is kind and len(found) == (2 if kind is torch.Tensor else 1)


def test_somebodys_source(tmp_path: Path) -> None:
    text = "def twice(t0, out):\n    out.copy_(t0 * 2)\n"
    program = linear()
    kernel = replace(program.kernels[1], impl=Source(text, "twice"))
    candidate = render(program.replace_kernel("k1", kernel), Problem(name="linear", text=FILE))
    model = load(candidate.source, tmp_path).ModelNew()
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(model(x), model.fc(x) * 2)
    assert candidate.library_kernels == ("k0", "k2")


def test_marks() -> None:
    """The marked twin is the same file with a call after each kernel, and its kernels are on the same lines."""
    candidate = render(numbered(KERNELS["sum_split"]()), MODULE)
    plain, marked = candidate.source.splitlines(), candidate.marked_source.splitlines()
    assert '_mark("k0")' in candidate.marked_source and "_mark" not in candidate.source
    assert [n for n, line in enumerate(plain) if "@triton.jit" in line] == [
        n for n, line in enumerate(marked) if "@triton.jit" in line
    ]


def test_no_name_for_the_launch_plan() -> None:
    with pytest.raises(CodegenError, match="launch plan 'graph'"):
        render(replace(linear(), launch="graph"), MODULE)


@pytest.mark.parametrize("name", KERNELS)
def test_a_rendered_file_is_plain(name: str) -> None:
    """No import of mtmc, no ``try``, no ``pass``, nothing unused among the helpers; it parses."""
    candidate = render(numbered(KERNELS[name]()), MODULE, header="Made by a test.")
    tree = ast.parse(candidate.source)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.Pass)]
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert all(module.split(".")[0] in ("torch", "triton") for module in imported)
    helpers = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for helper in set(helpers) - {"_place"}:
        assert candidate.source.count(helper) > 1, f"{helper} is not used"
    assert len(helpers) == len(set(helpers))
    assert candidate.source.count("\n\n\n\n") == 0, "blank lines pile up"
    assert not [line for line in candidate.source.splitlines() if line.rstrip() != line]
