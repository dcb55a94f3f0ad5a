"""Greedy search with patience: a correct step may become *current* even when it is slower; the *best* is kept.

Some gains need a losing step first: a kernel before its better schedule, a packed layout before its convolution. After
``patience`` steps in a row without a new best the search goes on from the best again. ``patience=0`` accepts only
improvements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mtmc.search.node import Node


class Taken(NamedTuple):
    """What a node became."""

    current: bool
    best: bool


ESTIMATE_TIE = 1.25
"""Two roofline estimates this close say nothing about which is faster."""
MEASURED_TIE = 1.01
"""Two measured medians this close differ by repeat noise."""
NOT_TAKEN = Taken(False, False)


class Greedy:
    """Starts at ``start``, which is current and best whatever its verdict was."""

    def __init__(
        self,
        start: Node,
        patience: int = 2,
        margin: float = 0.0,
        eligible: Callable[[Node], bool] = lambda node: True,
    ) -> None:
        """
        Args:
            patience: accepted steps without a new best that may follow each other.
            margin: relative gain below which a step is no new best (repeat noise), such as 0.005.
            eligible: whether a node may be the result at all, such as ``pure`` ones only.
        """
        self.current = self.best = start
        self.patience = patience
        self.margin = margin
        self.eligible = eligible
        self.without_gain = 0

    def take(self, node: Node) -> Taken:
        """Move on after a judged step. Rejected nodes change nothing: their action is masked by the caller."""
        if not node.accepted:
            return NOT_TAKEN
        if self._improves(node):
            self.current = self.best = node
            self.without_gain = 0
            return Taken(True, True)
        self.without_gain += 1
        if self.without_gain > self.patience:
            self.current = self.best
            self.without_gain = 0
            return NOT_TAKEN
        self.current = node
        return Taken(True, False)

    def _improves(self, node: Node) -> bool:
        if not self.eligible(node):
            return False
        if not (self.best.accepted and self.eligible(self.best)):
            return True
        # Where nothing tells two programs apart, the one that depends less on the library is the better result.
        timed = node.evaluation.timing is not None
        tie = node.cost_ms <= self.best.cost_ms * (MEASURED_TIE if timed else ESTIMATE_TIE)
        fewer = len(node.candidate.library_kernels) < len(self.best.candidate.library_kernels)
        if tie and fewer:
            return True
        return node.cost_ms < self.best.cost_ms * (1.0 - self.margin) if timed else node.rank < self.best.rank
