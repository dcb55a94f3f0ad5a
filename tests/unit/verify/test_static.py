"""Rules on the syntax tree, with the spellings that walk past a regular expression."""

from __future__ import annotations

import pytest

from mtmc.verify import static

CLEAN = """
import math
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def k0(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 0.0, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.fc = nn.Linear(f, f)
        self.time = 1

    def forward(self, x):
        # torch.compile(threading) in a comment is harmless
        y = torch.ops.aten.mm.default(x, self.fc.weight)
        k0[(1,)](y, y.numel(), BLOCK=1024)
        return y
"""


def rules(source: str) -> set[str]:
    return {f.rule.name for f in static.find(source) if f.rule.severity == "reject"}


def test_a_generated_candidate_is_clean() -> None:
    assert static.find(CLEAN) == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("try:\n            pass\n        except Exception:\n            pass", "no-try-in-functions"),
        ("y = torch.compile(self.fc)(x)", "no-torch-compile"),
        ("import torch as t; y = t.compile(self.fc)(x)", "no-torch-compile"),
        ("from torch import compile as c; y = c(self.fc)(x)", "no-torch-compile"),
        ("y = getattr(torch, 'compile')(self.fc)(x)", "no-torch-compile"),
        ("c = torch.compile; y = c(self.fc)(x)", "no-torch-compile"),
        ("n = 8 // 2; y = torch.jit.script(self.fc)(x)", "no-torch-compile"),
        ("s = torch.cuda.Stream()", "no-streams"),
        ("from torch.cuda import stream as s; s(None)", "no-streams"),
        ("import threading", "no-threads"),
        ("from concurrent.futures import ThreadPoolExecutor", "no-threads"),
        ("torch.cuda.Event.elapsed_time = lambda *a: 0.001", "no-patching"),
        ("setattr(torch.cuda, 'synchronize', None)", "no-patching"),
        ("import time as q; q.perf_counter = None", "no-patching"),
        ("import mtmc.verify", "no-mtmc"),
        ("import sys; sys._getframe(1)", "no-inspection"),
        ("import gc", "no-inspection"),
        ("open('x')", "no-files-or-network"),
        ("import socket", "no-files-or-network"),
        ("y = eval('x')", "no-files-or-network"),
    ],
)
def test_each_rule_finds_its_trick(line: str, rule: str) -> None:
    source = CLEAN.replace("y = torch.ops", f"{line}\n        y = torch.ops", 1)
    assert rules(source) == {rule}


def test_findings_name_the_line() -> None:
    source = CLEAN.replace("return y", "torch.compile(x)\n        return y")
    (finding,) = static.find(source)
    assert source.splitlines()[finding.line - 1].strip() == "torch.compile(x)"
    assert f"line {finding.line}" in finding.sentence() and finding.rule.why in finding.sentence()
