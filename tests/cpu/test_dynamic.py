"""Extents are expressions: one dynamic batch through a matrix product and a softmax, from capture to the kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mtmc
from mtmc.actions import apply, parse
from mtmc.capture import capture_module
from mtmc.codegen.module import render
from mtmc.errors import UsageError
from mtmc.ir.index import Dim
from mtmc.problem import Problem
from mtmc.problem.problem import Kind
from tests.cpu.dynamic_block import Block


def test_a_module_with_a_dynamic_batch_serves_every_batch_up_to_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Block().eval()
    optimized = mtmc.optimize(module, torch.randn(8, 64), steps=2, accept="correct", dynamic_batch=64)
    assert optimized.report.optimized and optimized.report.correct
    with torch.no_grad(), pytest.raises(UsageError, match="batch = 100, at most 64"):
        optimized(torch.randn(100, 64))
    optimized.save(tmp_path / "block.json")
    checks = Path(__file__).with_name("dynamic_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", str(checks)]
    env = dict(os.environ, TRITON_INTERPRET="1", SAVED_BLOCK=str(tmp_path / "block.json"))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "lines",
    [
        ("tile k0 to 32x16x32 with 4 warps", "generate all with default schedules"),
        ("encode the operands of k0 as split fp16", "generate all with default schedules"),
    ],
)
def test_the_batch_is_a_run_time_argument_and_nothing_else_is(lines: tuple[str, ...]) -> None:
    program = capture_module(Block(), (torch.randn(8, 64),), Dim("batch", 512))
    for line in lines:
        program = apply(program, parse(line))
    candidate = render(program, Problem(kind=Kind.MODULE, name="Block"))
    assert "batch = x.shape[0]" in candidate.source and "if batch > 512:" in candidate.source
    depends = {
        signature.kernel: [name for name, kind in signature.args if kind == "i32"] for signature in candidate.signatures
    }
    assert any(names == ["batch"] for names in depends.values())
    assert all(names in ([], ["batch"]) for names in depends.values())
    assert "int64" not in candidate.source
