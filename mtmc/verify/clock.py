"""Timed runs inside a resident process. Its timing functions are bound here, before any candidate is imported.

One sample is a whole forward between two events on the current stream, with a cold L2 and inputs at another address
than the time before. Then the device is synchronised as a whole and a third event recorded: what a program leaves
running on other streams shows up as the distance between the second and the third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch

Event = torch.cuda.Event
synchronize = torch.cuda.synchronize
elapsed = torch.cuda.Event.elapsed_time
record = torch.cuda.Event.record
now_ns = perf_counter_ns

FLUSH_BYTES = 256 << 20
"""Written before each run: more than twice the L2 of any card so far."""


def warm_card(device: str) -> None:
    """Create the CUDA context and load cuBLAS and cuDNN: seconds that must not be spent inside the card's lock."""
    if not device.startswith("cuda"):
        return
    torch.cuda.set_device(device)
    with torch.no_grad():
        x = torch.ones(1, 1, 32, 32, device=device)
        torch.nn.functional.conv2d(x @ x, x[:, :, :3, :3])
    synchronize()


class Clock:
    """Times one callable over rotating inputs."""

    def __init__(
        self, forward: Callable[..., Any], copies: Sequence[Sequence[Any]], restore: Callable[[], None]
    ) -> None:
        self._forward = forward
        self._copies = copies
        self._restore = restore
        self._turn = 0
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def warm_up(self, runs: int) -> None:
        """Untimed runs; the first one of all may compile or choose algorithms."""
        for _ in range(runs):
            self._once()
        synchronize()

    def block(self, runs: int) -> list[tuple[float, float, float]]:
        """``runs`` samples of (device ms, ms still running elsewhere after it, host ms until the call returned)."""
        return [self._once() for _ in range(runs)]

    def _once(self) -> tuple[float, float, float]:
        inputs = self._copies[self._turn % len(self._copies)]
        self._turn += 1
        self._restore()
        self._flush.zero_()
        start, end, last = Event(enable_timing=True), Event(enable_timing=True), Event(enable_timing=True)
        record(start)
        before = now_ns()
        out = self._forward(*inputs)
        host = now_ns() - before
        record(end)
        synchronize()
        record(last)
        synchronize()
        del out
        return elapsed(start, end), elapsed(end, last), host / 1e6


class Marks:
    """The ``_mark`` of a marked source: one event a call, so that neighbours are a kernel's time apart."""

    def __init__(self) -> None:
        self._events: list[tuple[str, torch.cuda.Event]] = []

    def start(self) -> None:
        self._events = []
        self("")

    def __call__(self, kernel: str) -> None:
        event = Event(enable_timing=True)
        record(event)
        self._events.append((kernel, event))

    def times(self) -> list[tuple[str, float]]:
        """(kernel id, ms) in launch order; call after a synchronise."""
        pairs = zip(self._events, self._events[1:], strict=False)
        return [(name, elapsed(before, event)) for (_, before), (name, event) in pairs]
