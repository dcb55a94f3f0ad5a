"""What the judge found out about one candidate: one outcome, and the measurements that belong to it."""

from __future__ import annotations

import statistics
from enum import StrEnum

from pydantic import Field, model_validator

from mtmc.data.record import Record


class Outcome(StrEnum):
    """How a judged step ended. Exactly one; each is a sentence."""

    ACCEPTED = "accepted"
    """Built, ran, right under the numeric contract, and timed (or run where nothing can be timed)."""
    BUILD_ERROR = "build_error"
    """The source does not load, or a kernel does not compile."""
    STATIC_REJECT = "static_reject"
    """A rule on the syntax tree forbids the source."""
    RUN_ERROR = "run_error"
    """The forward raised, or the process died (crash, sticky CUDA error)."""
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    """Compile or run went past its limit and was killed."""
    WRONG_STRUCTURE = "wrong_structure"
    """Number, shape, dtype, strides or device of the results differ."""
    WRONG_RESULT = "wrong_result"
    """Outside the numeric contract on at least one input set."""
    WRONG_STATE = "wrong_state"
    """State updates (running statistics) differ."""
    MUTATED_INPUT = "mutated_input"
    IMPOSSIBLE_TIME = "impossible_time"
    """Faster than compulsory bytes allow: something was not computed."""
    REFERENCE_ERROR = "reference_error"
    """The reference itself fails, so nothing can be judged."""


class ErrorStats(Record):
    """Error of one result against the float64 oracle, next to the reference's own error."""

    input_set: str
    """Name of the input set, such as ``seed0`` or ``wide``."""
    output: str
    """Which result, such as ``out0`` or ``state:bn.running_mean``."""
    norm: float
    """``||y - oracle|| / ||oracle||`` (absolute where the oracle is zero)."""
    worst: float
    """``max|y - oracle| / scale``, scale = root mean square of the oracle's finite values."""
    reference_norm: float
    reference_worst: float
    allowed_norm: float
    """max(2 x reference_norm, 4 units in the last place)."""
    allowed_worst: float

    @property
    def ok(self) -> bool:
        return self.norm <= self.allowed_norm and self.worst <= self.allowed_worst


class Timing(Record):
    """Device milliseconds of one program: cold L2, fresh inputs, whole forward."""

    samples_ms: tuple[float, ...] = Field(min_length=1)
    host_ms: float | None = None
    """Median host time of a forward call until it returns (launch overhead)."""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)

    @property
    def spread(self) -> float:
        """Interquartile range over median: the repeat noise, a plain fraction."""
        if len(self.samples_ms) < 4:
            return 0.0
        q1, _, q3 = statistics.quantiles(self.samples_ms, n=4)
        return (q3 - q1) / self.median_ms if self.median_ms else 0.0


class KernelTime(Record):
    kernel: str
    """Program kernel id."""
    ms: float


class KernelBuild(Record):
    """What the compiler reports for one generated kernel on its target."""

    kernel: str
    function: str
    registers: int | None = None
    spills: int | None = None
    """Bytes spilled to local memory."""
    shared_bytes: int | None = None
    compile_s: float = 0.0


class Evaluation(Record):
    """The verdict on one candidate. Impossible combinations are refused at construction."""

    outcome: Outcome
    message: str = ""
    """Why, in words an engineer can act on. Required unless accepted."""
    stage: str = ""
    """Where it ended: static, build, run, compare, time."""
    errors: tuple[ErrorStats, ...] = ()
    timing: Timing | None = None
    """The candidate's time; None where the machine has no GPU."""
    reference_timing: Timing | None = None
    """Eager, interleaved with ``timing`` in the same run."""
    compiled_timing: Timing | None = None
    """torch.compile (default mode), interleaved in the same run; only in a final evaluation."""
    estimate_ms: float | None = None
    """A roofline *estimate* where nothing was measured. Never mixed with measured times."""
    kernels: tuple[KernelTime, ...] = ()
    builds: tuple[KernelBuild, ...] = ()
    peak_bytes: int | None = None
    """Peak device memory of one forward."""
    build_s: float = 0.0
    judge_s: float = 0.0
    gpu_lock_s: float = 0.0
    flags: tuple[str, ...] = ()
    """Doubts that are not rejections, such as ``faster than the operation count allows``."""

    @model_validator(mode="after")
    def _consistent(self) -> Evaluation:
        accepted = self.outcome is Outcome.ACCEPTED
        if not accepted and not self.message:
            raise ValueError(f"a {self.outcome} evaluation must say why")
        if self.timing is not None and self.outcome not in (Outcome.ACCEPTED, Outcome.IMPOSSIBLE_TIME):
            raise ValueError(f"a {self.outcome} evaluation cannot carry a time")
        if accepted and not all(e.ok for e in self.errors):
            raise ValueError("an accepted evaluation cannot carry an error outside the contract")
        if self.timing is not None and self.estimate_ms is not None:
            raise ValueError("an estimate never stands beside a measured time")
        return self

    @property
    def ms(self) -> float | None:
        """Median measured time, or None."""
        return self.timing.median_ms if self.timing is not None else None

    @property
    def speedup(self) -> float | None:
        """Eager over candidate, both measured in this run; None where not timed."""
        if self.timing is None or self.reference_timing is None:
            return None
        return self.reference_timing.median_ms / self.timing.median_ms


class Baselines(Record):
    """What the candidate has to beat, measured in the same run."""

    eager: Timing | None = None
    compiled: Timing | None = None
    """torch.compile, default mode; None where there is no GPU or it failed."""
    compiled_max: Timing | None = None
    """torch.compile, max-autotune, where asked for."""
    eager_reduced: Timing | None = None
    """Eager with TF32 allowed for matmul: information, never the baseline."""
    compile_error: str = ""
    """Why ``compiled`` is missing, if it failed."""
    eager_error: float | None = None
    """Largest norm error of eager against the float64 oracle."""
    gpu_lock_s: float = 0.0
