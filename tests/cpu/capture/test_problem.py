from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from mtmc.capture import capture, capture_module, measure_rounding, with_rounding
from mtmc.errors import CaptureError
from mtmc.ir.program import Role
from mtmc.problem import load_problem
from tests.cpu.capture.agreement import lowered

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.fc = nn.Linear(width, 8)
        self.scale = scale
        self.history = torch.zeros(8)

    def squash(self, x):
        x = x * self.scale
        return torch.tanh(x)

    def forward(self, x, factor):
        x = self.fc(x)
        y = self.squash(x)
        self.history = y.mean(dim=0)
        return y * factor


def get_inputs():
    return [torch.rand(1 << 33, 4), 3.5]


def get_init_inputs():
    return [4, 0.5]
"""


def test_a_problem_of_any_size_is_captured_with_its_lines() -> None:
    program = capture(load_problem(SOURCE))
    assert [(k.op, k.lines) for k in program.kernels] == [
        ("linear", (18,)),
        ("mul", (14,)),
        ("tanh", (15,)),
        ("mean", (20,)),
        ("mul", (21,)),
    ]
    assert [(u.state, u.value) for u in program.updates] == [("history", program.kernels[3].writes[0])]
    assert program.buffer("history").role is Role.STATE
    assert program.buffer("fc.weight").source == "fc.weight"
    assert [b.name for b in program.buffers if b.role is Role.INPUT] == ["x"]
    assert program.buffer("x").shape[0].constant == 1 << 33


def test_a_constructor_that_needs_values() -> None:
    text = SOURCE.replace("self.scale = scale", "self.scale = torch.linspace(0, scale, 5)[-1].item()")
    assert lowered(capture(load_problem(text))).count(True) == 5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("if x.sum() > 0: x = x + 1", "trace"),
        ("y = float(x.max())", "trace|number"),
        ("x = x.to(torch.complex64)", "complex"),
        ("x.add_(1)", "overwrites its input 'x'"),
    ],
)
def test_refusals_name_the_line(line: str, reason: str) -> None:
    text = SOURCE.replace("x = self.fc(x)", line + "\n        x = self.fc(x if x.dtype is torch.float32 else x.real)")
    text = text.replace("x = x * self.scale", "x = x * self.scale + (y if 'y' in locals() else 0)")
    with pytest.raises(CaptureError, match=rf"\.py:18: .*({reason})") as info:
        capture(load_problem(text, name="refused"))
    assert info.value.line == 18 and info.value.message.count("\n") == 0


def test_rounding_without_a_device_is_assumed() -> None:
    program = capture_module(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1)), (torch.randn(1, 3, 8, 8),)
    )
    result = measure_rounding(program, "cpu")
    assert not result.measured and result.of_kernel == {"k0": "exact", "k2": "exact"}
    assert with_rounding(program, result) == program


KERNELBENCH = Path(__file__).resolve().parents[3] / ".kb"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not KERNELBENCH.is_dir(), reason="no KernelBench checkout in .kb")
@pytest.mark.parametrize("level", [1, 2])
def test_kernelbench(level: int) -> None:
    """Every problem captures; only convolutions, attention and dropout stay library calls."""
    stay = re.compile(r"conv|scaled_dot_product_attention|dropout")
    files = sorted((KERNELBENCH / f"level{level}").glob("*.py"))
    for file in files:
        program = capture(load_problem(file))
        opaque = [k.op for k, low in zip(program.kernels, lowered(program), strict=True) if not low]
        views = [k.op for k in program.kernels if getattr(k.spec, "effects", ()) == ("view",)]
        assert all(stay.match(op) or op in views for op in opaque), (file.name, opaque)
        assert all(kernel.lines for kernel in program.kernels), file.name
