"""Programs of other kinds: Triton through the interpreter, random draws, indices, hidden state, exported modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mtmc.capture import capture_module
from mtmc.data.candidate import Candidate, KernelSignature
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.errors import JudgeError
from mtmc.ir.codec import to_json
from mtmc.problem import load_problem
from mtmc.problem.module import save_module
from mtmc.verify import Judge, WorkerPool

ADD = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y): return x + 2 * y
def get_inputs(): return [torch.randn(1000), torch.randn(1000)]
"""
TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn

@triton.jit
def k0(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) + 2 * tl.load(y + i, mask=m), mask=m)

class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        k0[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
        return out
"""
SIGNATURE = KernelSignature(
    kernel="k0",
    function="k0",
    args=(("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32")),
    constexprs=(("BLOCK", 256),),
    aligned=("x", "y", "out"),
)


def judged(pool: WorkerPool, reference: str, source: str, *signatures: KernelSignature) -> Evaluation:
    with Judge(load_problem(reference), pool=pool) as judge:
        return judge.evaluate(Candidate(source=source, signatures=signatures))


def test_a_triton_kernel_is_compiled_for_the_card_and_run_in_the_interpreter(pool: WorkerPool) -> None:
    evaluation = judged(pool, ADD, TRITON, SIGNATURE, SIGNATURE.model_copy(update={"kernel": "k1"}))
    assert evaluation.outcome is Outcome.ACCEPTED, evaluation.message
    assert [b.kernel for b in evaluation.builds] == ["k0", "k1"]
    assert evaluation.builds[0].registers and evaluation.build_s > 0


def test_a_missing_mask_tail_is_found(pool: WorkerPool) -> None:
    evaluation = judged(pool, ADD, TRITON.replace("m = i < n", "m = i < n - 1"))
    assert evaluation.outcome is Outcome.WRONG_RESULT and "NaN" in evaluation.message


def test_a_kernel_that_does_not_compile_is_a_build_error_that_names_it(pool: WorkerPool) -> None:
    bad = SIGNATURE.model_copy(update={"constexprs": (("BLOCK", 250),), "kernel": "k7"})
    evaluation = judged(pool, ADD, TRITON, bad)
    assert evaluation.outcome is Outcome.BUILD_ERROR and evaluation.stage == "build"
    assert "kernel k7" in evaluation.message and "power of 2" in evaluation.message


def test_random_operations_replay_the_generator(pool: WorkerPool) -> None:
    reference = ADD.replace("return x + 2 * y", "return nn.functional.dropout(x + y, 0.5) + torch.rand_like(x)")
    new = reference.replace("class Model", "class ModelNew")
    evaluation = judged(pool, reference, new)
    assert evaluation.outcome is Outcome.ACCEPTED, evaluation.message
    assert "random" in evaluation.flags
    swapped = new.replace("nn.functional.dropout(x + y, 0.5) + torch.rand_like(x)", "nn.functional.dropout(x + y, 0.5)")
    assert judged(pool, reference, swapped).outcome is Outcome.WRONG_RESULT


def test_indices_may_break_ties_otherwise(pool: WorkerPool) -> None:
    reference = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x): return torch.argmax(x, 1)
def get_inputs(): return [torch.randint(0, 3, (16, 20)).float()]
"""
    new = reference.replace("class Model", "class ModelNew")
    last = new.replace("torch.argmax(x, 1)", "19 - torch.argmax(x.flip(1), 1)")
    assert judged(pool, reference, last).outcome is Outcome.ACCEPTED
    second = new.replace("torch.argmax(x, 1)", "torch.argmin(x, 1)")
    assert judged(pool, reference, second).outcome is Outcome.WRONG_RESULT


def test_hidden_state_is_carried_and_compared(pool: WorkerPool) -> None:
    reference = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.randn(8)
    def forward(self, x):
        self.h = torch.tanh(self.h + x.mean(0))
        return x + self.h
def get_inputs(): return [torch.randn(4, 8)]
"""
    new = reference.replace("class Model", "class ModelNew")
    evaluation = judged(pool, reference, new)
    assert evaluation.outcome is Outcome.ACCEPTED, evaluation.message
    assert "state:!h" in {e.output for e in evaluation.errors}
    kept = new.replace(
        "self.h = torch.tanh(self.h + x.mean(0))\n        return x + self.h",
        "return x + torch.tanh(self.h + x.mean(0))",
    )
    assert judged(pool, reference, kept).outcome is Outcome.WRONG_STATE


def test_a_set_on_which_the_reference_raises_is_skipped_and_flagged(pool: WorkerPool) -> None:
    reference = ADD.replace("return x + 2 * y", "assert float(x.abs().max()) < 50; return x + 2 * y")
    evaluation = judged(pool, reference, TRITON)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert {e.input_set for e in evaluation.errors} == {"seed0"} and any("wide skipped" in f for f in evaluation.flags)


def test_a_module_is_judged_from_its_exported_program(pool: WorkerPool, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(torch.bfloat16)
    problem = save_module(module, [torch.randn(16, 8, dtype=torch.bfloat16)], tmp_path)
    source = """
import torch
from torch import nn

class Zero(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 8, dtype=torch.bfloat16))
        self.bias = nn.Parameter(torch.empty(8, dtype=torch.bfloat16))

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("0", Zero())

    def forward(self, x):
        layer = self.get_submodule("0")
        return torch.ops.aten.gelu.default(torch.ops.aten.linear.default(x, layer.weight, layer.bias))
"""
    with Judge(problem, pool=pool) as judge:
        evaluation = judge.evaluate(Candidate(source=source))
        assert evaluation.outcome is Outcome.ACCEPTED, evaluation.message
        wrong = judge.evaluate(Candidate(source=source.replace("aten.gelu", "aten.silu")))
        assert wrong.outcome is Outcome.WRONG_RESULT


def test_the_trusted_process_measures_for_a_layer_above() -> None:
    """The precision probe of capture runs beside the reference, not in the caller's process."""
    program = capture_module(torch.nn.Conv2d(3, 4, 1), (torch.randn(1, 3, 8, 8),))
    with Judge(load_problem(ADD), device="cpu") as judge:
        found, seconds = judge.measure("mtmc.capture.probe:measure", to_json(program))
        assert found == {"k0": "exact"} and seconds == 0.0
        with pytest.raises(JudgeError, match="no_such_function failed"):
            judge.measure("mtmc.capture.probe:no_such_function", "")
