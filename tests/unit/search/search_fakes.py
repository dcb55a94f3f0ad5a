"""A problem with its Program, and a judge that needs no process: what it says is a function of the source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, KernelTime, Outcome, Timing
from mtmc.ir.expr import Load, Op, Stage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Buffer, Call, Kernel, Program, Ref, Role, Stages
from mtmc.ir.types import DType
from mtmc.problem.problem import Problem

TEXT = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        x = torch.exp(x)
        x = torch.tanh(x)
        return torch.relu(x)


def get_inputs():
    return [torch.rand(512, 1024)]


def get_init_inputs():
    return []
"""


def make_chain(ops: tuple[str, ...] = ("exp", "tanh", "sigmoid")) -> Program:
    shape = (Index.of(512), Index.of(1024))
    names = ["x", *(f"t{n}" for n in range(len(ops) - 1)), "out"]
    buffers = [Buffer.temp(name, DType.F32, shape) for name in names]
    buffers[0] = Buffer("x", DType.F32, shape, buffers[0].strides, Role.INPUT, "0")
    axes = (Axis("i0", shape[0]), Axis("i1", shape[1]))
    at = tuple(Index.of(axis) for axis in axes)
    kernels = [
        Kernel(
            id=f"k{n}",
            spec=Stages((Stage(axes, names[n + 1], at, Op(op, (Load(names[n], at),))),)),
            op=op,
            calls=(Call(f"aten.{op}.default", (Ref(names[n]),), results=(names[n + 1],)),),
            lines=(6 + n,),
        )
        for n, op in enumerate(ops)
    ]
    return Program(tuple(buffers), tuple(kernels), ("out",))


def timing(ms: float) -> Timing:
    return Timing(samples_ms=(ms,) * 5)


def accepted(ms: float, kernels: dict[str, float] | None = None) -> Evaluation:
    times = tuple(KernelTime(kernel=name, ms=value) for name, value in (kernels or {}).items())
    return Evaluation(
        outcome=Outcome.ACCEPTED, timing=timing(ms), reference_timing=timing(8.0), kernels=times, gpu_lock_s=0.1
    )


def rejected(outcome: Outcome = Outcome.WRONG_RESULT, message: str = "norm 0.3, allowed 1e-6") -> Evaluation:
    return Evaluation(outcome=outcome, message=message, stage="compare", gpu_lock_s=0.1)


Verdict = Callable[[Candidate, int], Evaluation]


@dataclass
class FakeJudge:
    """``verdict(candidate, n)`` is asked for the n-th judged candidate; ``final`` for the final checks."""

    verdict: Verdict
    final_verdict: Verdict | None = None
    seen: list[Candidate] = field(default_factory=list)
    finals: list[Candidate] = field(default_factory=list)
    floors: list[int | None] = field(default_factory=list)

    def baselines(self, *, compiled: bool = True, max_autotune: bool = False) -> Baselines:
        return Baselines(eager=timing(8.0), compiled=timing(5.0) if compiled else None, gpu_lock_s=0.2)

    def evaluate(
        self,
        candidate: Candidate,
        *,
        final: bool = False,
        floor_bytes: int | None = None,
        estimate_ms: float | None = None,
    ) -> Evaluation:
        self.floors.append(floor_bytes)
        if final:
            self.finals.append(candidate)
            return (self.final_verdict or self.verdict)(candidate, len(self.finals) - 1)
        self.seen.append(candidate)
        return self.verdict(candidate, len(self.seen) - 1)


def by_launches(candidate: Candidate, number: int = 0) -> Evaluation:
    """A millisecond for each generated kernel, two for each that the library runs."""
    times = {s.kernel: 1.0 for s in candidate.signatures} | dict.fromkeys(candidate.library_kernels, 2.0)
    return accepted(sum(times.values()), times)


PROBLEM = Problem(name="chain", text=TEXT)
