from __future__ import annotations

import importlib.util
import re
import statistics
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from mtmc.capture import capture, capture_module, measure_rounding, with_rounding
from mtmc.errors import CaptureError
from mtmc.ir.program import Role
from mtmc.problem import load_problem
from mtmc.problem.module import save_module
from tests.cpu.capture.agreement import compare, lowered

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
    assert with_rounding(program, result.of_kernel) == program


KERNELBENCH = Path(__file__).resolve().parents[3] / ".kb"


STAYS = {
    1: r"conv|scaled_dot_product_attention",
    2: r"conv|dropout",
    3: r"conv|scaled_dot_product_attention|lstm|gru|randn|index|einsum",
}
"""Operations that may stay library calls."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not KERNELBENCH.is_dir(), reason="no KernelBench checkout in .kb")
@pytest.mark.parametrize("level", STAYS)
def test_kernelbench(level: int) -> None:
    """Every problem is captured, every operation has its line, and only known operations stay library calls."""
    counts: Counter[str] = Counter()
    seconds: list[float] = []
    for file in sorted((KERNELBENCH / f"level{level}").glob("*.py")):
        if "einops" in file.read_text() and importlib.util.find_spec("einops") is None:
            continue
        start = time.perf_counter()
        program = capture(load_problem(file))
        seconds.append(time.perf_counter() - start)
        for kernel, low in zip(program.kernels, lowered(program), strict=True):
            view = getattr(kernel.spec, "effects", ()) == ("view",)
            counts["lowered" if low else "view" if view else "opaque"] += 1
            assert low or view or re.match(STAYS[level], kernel.op), (file.name, kernel.op)
            assert kernel.lines, (file.name, kernel.op)
    print(f"level {level}: {len(seconds)} problems, kernels {dict(counts)}, median {statistics.median(seconds):.2f} s")


def test_a_saved_module(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Softmax(-1))
    inputs = (torch.randn(4, 6),)
    compare(capture(save_module(module, inputs, tmp_path / "fixed")), module, inputs)
    program = capture(save_module(module, inputs, tmp_path / "dynamic", batch_limit=512))
    assert [(dim.name, dim.limit) for dim in program.dims] == [("batch", 512)]
    compare(program, module, (torch.randn(9, 6),))
