"""What a judge may be asked to do differently."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mtmc.data.record import Record


class TimingBudget(Record):
    """When to stop measuring one side: precise enough, or out of time."""

    seconds: float = Field(gt=0)
    """Device seconds of timed runs a side."""
    min_samples: int = 5
    max_samples: int = 100
    precision: float = 0.01
    """Stop when the half-width of the median's 95% interval is below this fraction of it."""


class JudgeOptions(Record):
    """Defaults are those of a search on a card that nobody else uses."""

    seed: int = 0
    """Seed of parameters, and of input set ``seed0``."""
    step_sets: tuple[str, ...] = ("seed0", "wide")
    """Input sets (``inputs.SETS``) for a step of a search."""
    final_sets: tuple[str, ...] = ("seed0", "seed1", "wide", "signs")
    """Input sets for a result that is reported."""
    step_budget: TimingBudget = TimingBudget(seconds=0.15, max_samples=40)
    final_budget: TimingBudget = TimingBudget(seconds=0.4, min_samples=9)
    kernel_repeats: int = 5
    """Runs of the marked source for per-kernel times; 0: none."""
    forward_timeout_s: float = 60.0
    """Limit of one exchange with a child that runs a forward (or several timed ones)."""
    reference_timeout_s: float = 240.0
    """Limit of one request to the trusted process: a large float64 oracle takes its time."""
    build_timeout_s: float = 120.0
    compile_timeout_s: float = 180.0
    """Limit for torch.compile; beyond it the baseline is missing and says so."""
    start_timeout_s: float = 120.0
    """Limit for a child to import torch and be ready."""
    shared_card: bool = False
    """Other workers use the card between locked regions: free everything at the end of each."""
    cache_bytes: int = 8 << 30
    """Device memory for oracle and reference results kept between steps; otherwise they are computed again."""
    strides: Literal["reject", "flag"] = "reject"
    """What happens when only an output's strides differ from the reference's."""
    index_outputs: dict[int, tuple[int, int]] = Field(default_factory=dict)
    """Output position -> (input position, dim): an integer output that points into an input, compared by the values
    that it points at. Plain argmax and argmin of an input are recognised without it."""
    transport: Literal["auto", "ipc", "host"] = "auto"
    """How CUDA tensors travel between the children: shared device memory, or copies through host memory."""
    build_workers: int = 0
    """Processes that compile kernels; 0: one a core, at most 4."""
    static_rules: bool = True
