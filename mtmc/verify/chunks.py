"""Pieces of large tensors, so that float64 temporaries of a 17 GB tensor never exist as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

LIMIT = 1 << 25
"""Elements of one piece: 256 MiB of float64."""


def pieces(shape: Sequence[int], limit: int = LIMIT) -> Iterator[tuple[slice | int, ...]]:
    """Index tuples that cover ``shape`` in order without overlap, each of at most ``limit`` elements where possible."""
    if not shape or math.prod(shape) <= limit:
        yield ()
        return
    row = math.prod(shape[1:])
    if row <= limit:
        step = max(1, limit // max(row, 1))
        for start in range(0, shape[0], step):
            yield (slice(start, min(start + step, shape[0])),)
        return
    for i in range(shape[0]):
        for rest in pieces(shape[1:], limit):
            yield (i, *rest)
