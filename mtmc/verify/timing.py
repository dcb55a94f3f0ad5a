"""Interleaved timing of resident processes: who runs when, when it is enough, and whether the numbers can be true.

The sides take turns in short blocks, forward and then backward (A B C C B A), with a warm-up after each switch, so that
drift of clocks or temperature meets all of them alike. Children answer with raw samples; the parent holds its own clock
against them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mtmc.data.evaluation import Timing
from mtmc.verify.options import TimingBudget

BLOCK_MS = 12.0
"""Aim for one block."""
LATE_MS, LATE_SHARE = 0.1, 0.2
"""Work that still runs after the end event, beyond both, counts as part of the time."""
HIDDEN_MS = 1.0
"""How much more than its claim a run may take on the parent's clock, beyond what the other sides take more."""

Block = Callable[[int, int], list[list[float]]]


@dataclass
class Side:
    """One program under the clock. ``block(runs, warm_up)`` gives samples of (device ms, late ms, host ms)."""

    name: str
    block: Block
    device_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    wall_ms: float = 0.0
    """The parent's own clock over the timed blocks."""
    runs: int = 0
    """Runs in those blocks, warm-ups included."""

    def take(self, runs: int, warm_up: int) -> None:
        started = time.perf_counter()
        samples = self.block(runs, warm_up)
        self.wall_ms += (time.perf_counter() - started) * 1e3
        self.runs += runs + warm_up
        for device, late, host in samples:
            self.device_ms.append(device)
            self.late_ms.append(late)
            self.host_ms.append(host)

    def enough(self, budget: TimingBudget) -> bool:
        count = len(self.device_ms)
        if count < budget.min_samples:
            return False
        spent = sum(self.device_ms) / 1e3
        return count >= budget.max_samples or spent >= budget.seconds or half_width(self.device_ms) < budget.precision

    @property
    def is_late(self) -> bool:
        late = statistics.median(self.late_ms)
        return late > LATE_MS and late > LATE_SHARE * statistics.median(self.device_ms)

    @property
    def timing(self) -> Timing:
        """The samples as a record; work found running elsewhere is added to the time."""
        late = self.late_ms if self.is_late else [0.0] * len(self.device_ms)
        return Timing(
            samples_ms=tuple(round(d + x, 6) for d, x in zip(self.device_ms, late, strict=True)),
            host_ms=round(statistics.median(self.host_ms), 6),
        )

    @property
    def unclaimed_ms(self) -> float:
        """Milliseconds a run that the parent saw and the child did not claim: flush, restore, messages."""
        claimed = statistics.fmean(d + x for d, x in zip(self.device_ms, self.late_ms, strict=True))
        return self.wall_ms / max(self.runs, 1) - claimed


def half_width(samples: Sequence[float]) -> float:
    """Half-width of the median's 95% interval over the median (McGill, Tukey and Larsen 1978: 1.57 IQR / sqrt n)."""
    if len(samples) < 4:
        return math.inf
    q1, middle, q3 = statistics.quantiles(samples, n=4)
    return 1.57 * (q3 - q1) / math.sqrt(len(samples)) / middle if middle else 0.0


def interleave(sides: Sequence[Side], budget: TimingBudget) -> None:
    """Run the sides in turn until each has enough."""
    for side in sides:
        side.take(1, 1)
    while waiting := [s for s in sides if not s.enough(budget)]:
        for side in (*waiting, *reversed(waiting)):
            once = max(statistics.median(side.device_ms), 1e-3)
            runs = max(1, min(10, int(BLOCK_MS / once), budget.max_samples))
            side.take(runs, warm_up=1 if once > 1 else 2)


def doubts(side: Side, others: Sequence[Side]) -> list[str]:
    """What about a side's samples can't be true or needs a second look."""
    found = []
    if side.is_late:
        found.append(
            f"{statistics.median(side.late_ms):.3f} ms of work ran outside the current stream and was added to the time"
        )
    usual = max((o.unclaimed_ms for o in others if o is not side), default=side.unclaimed_ms)
    if side.unclaimed_ms > usual + HIDDEN_MS:
        found.append(f"the parent's clock saw {side.unclaimed_ms - usual:.2f} ms a run that the child did not claim")
    if sum(side.device_ms) > side.wall_ms * 1.02:
        found.append("the child claims more time than the parent's clock saw")
    return found
