"""Sets up the interleaved timing: how many copies of the inputs fit, which process times what."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mtmc.data.evaluation import KernelTime, Timing
from mtmc.verify.options import JudgeOptions, TimingBudget
from mtmc.verify.timing import Side, interleave
from mtmc.verify.verdicts import median_by_key
from mtmc.verify.worker import Fault, Worker

COPIES = 3
"""Inputs at this many addresses, where memory allows."""
ROOM = 4
"""Free memory that a forward may need, as a multiple of its inputs and outputs."""


class Stopwatch:
    """Times variants of the reference and a candidate that are both loaded already. Use inside the card's lock."""

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options

    def reference_only(self, reference: Worker, variants: Sequence[str], budget: TimingBudget) -> dict[str, Timing]:
        """Variants of the reference against each other."""
        copies = self._copies(reference, processes=1)
        self._start_reference(reference, variants, copies)
        sides = self._sides(reference, variants)
        interleave(sides, budget)
        return {side.name: side.timing for side in sides}

    def against(
        self, reference: Worker, child: Worker, variants: Sequence[str], shapes: dict[str, Any], budget: TimingBudget
    ) -> dict[str, Side]:
        """Variants of the reference against the candidate, which is the side named ``candidate``.

        ``shapes``: what ``prepare`` said of ``seed0``, whose inputs both processes hold already.
        """
        limit = self._options.forward_timeout_s
        copies = self._copies(reference, processes=2)
        for name in copies[1:]:
            try:
                slots = child.call("allocate", limit, key=name, metas=shapes["metas"])
                reference.call("push_inputs", limit, name=name, slots=slots)
                child.call("take_inputs", limit, key=name, spec=shapes["spec"])
            except Fault as fault:
                if fault.kind != "oom":
                    raise
                copies = copies[: copies.index(name)]
                break
        copies = self._start_reference(reference, variants, copies)
        child.call("start_clock", limit, keys=copies)
        sides = self._sides(reference, variants)
        sides.append(Side("candidate", partial(_block, child, limit)))
        interleave(sides, budget)
        return {side.name: side for side in sides}

    def kernels(self, child: Worker, marked_source: str) -> list[KernelTime]:
        """Time of each kernel of the candidate's launch plan."""
        runs = child.call(
            "kernel_times", self._options.forward_timeout_s, source=marked_source, key="seed0",
            repeats=self._options.kernel_repeats,
        )  # fmt: skip
        return [KernelTime(kernel=k, ms=round(ms, 6)) for k, ms in median_by_key(runs).items()]

    def _copies(self, reference: Worker, processes: int) -> list[str]:
        """Names of the inputs to rotate through: the checked set, and as many further ones as fit."""
        room = reference.call("room", self._options.forward_timeout_s, name="seed0")
        spare = room["free"] - ROOM * (room["inputs"] + room["outputs"])
        more = int(spare // max(processes * room["inputs"], 1))
        if more < 1:
            # Results that are kept for the next step make way; they can be computed again.
            reference.call("release", self._options.forward_timeout_s, keep_bytes=0, keep_module=True)
        return ["seed0", *(f"timed{i}" for i in range(max(0, min(COPIES - 1, more))))]

    def _start_reference(self, reference: Worker, variants: Sequence[str], copies: list[str]) -> list[str]:
        """Warm the variants up; answers with the copies that fitted."""
        # The first run of a compiled variant may still compile for new strides.
        limit = self._options.compile_timeout_s
        try:
            reference.call("start_clock", limit, variants=list(variants), copies=copies)
        except Fault as fault:
            if fault.kind != "oom":
                raise
            # Free memory was an estimate: others may have taken some. One copy and no kept results is the least.
            copies = copies[:1]
            reference.call("release", self._options.forward_timeout_s, keep_bytes=0, keep_module=True)
            reference.call("start_clock", limit, variants=list(variants), copies=copies)
        return copies

    def _sides(self, reference: Worker, variants: Sequence[str]) -> list[Side]:
        limit = self._options.forward_timeout_s
        return [Side(v, partial(_block, reference, limit, variant=v)) for v in variants]


def _block(worker: Worker, limit: float, runs: int, warm_up: int, **which: str) -> list[list[float]]:
    return worker.call("time_block", limit, runs=runs, warm_up=warm_up, **which)
