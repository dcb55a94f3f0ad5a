"""The numeric contract: a candidate's error against a float64 oracle, next to the reference's own error.

Error as a norm, ``||y - o|| / ||o||``, and as the worst element relative to the output's scale,
``max|y - o| / rms(o)``; each may be at most max(2 x the reference's own, 4 units in the last place of the output's
scale). Pure functions over tensors; they run in whichever process holds the tensors, which is never the one that runs
the candidate.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mtmc.verify.chunks import pieces
from mtmc.verify.state import equal_mask

ULPS = 4
FACTOR = 2


@dataclass(frozen=True)
class Errors:
    """Distance of one tensor from the oracle."""

    norm: float
    worst: float


@dataclass(frozen=True)
class Comparison:
    """Everything measured about one result of the candidate."""

    candidate: Errors
    reference: Errors
    ulp_norm: float
    """4 units in the last place, as a norm."""
    ulp_worst: float
    """4 units in the last place of the largest oracle value, relative to the scale."""
    misplaced: int = 0
    """Elements that are infinite or NaN in one and not, or not so, in the other."""
    where: tuple[int, ...] = ()
    """Index of the worst element."""
    got: float = 0.0
    wanted: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(candidate: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> Comparison:
    """Compare tensors of equal shape; the candidate's and the reference's dtype is the same, the oracle is float64.

    Integers and booleans must be equal. Elements where only the reference overflows bind nobody; where reference and
    oracle both are infinite or NaN the candidate must be so too.
    """
    if not (reference.is_floating_point() or reference.is_complex()):
        return exact(candidate, reference)
    if reference.is_complex():
        candidate, oracle, reference = (torch.view_as_real(t.resolve_conj()) for t in (candidate, oracle, reference))
    sums, tops, misplaced = _all_finite(candidate, oracle, reference) or _masked(candidate, oracle, reference)
    (ey, er, eo, count), (ty, tr, to) = sums, tops
    norm = math.sqrt(eo) or 1.0
    scale = math.sqrt(eo / count) if count and eo else 1.0
    ulps = ULPS * torch.finfo(reference.dtype).eps
    mine, own = Errors(math.sqrt(ey) / norm, ty / scale), Errors(math.sqrt(er) / norm, tr / scale)
    ulp_worst = ulps * (to / scale if eo else 1.0)
    # Only a result that will be rejected needs to be told where it is wrong: that costs another pass.
    outside = mine.norm > max(FACTOR * own.norm, ulps) or mine.worst > max(FACTOR * own.worst, ulp_worst)
    where = _worst_at(candidate, oracle, reference) if (outside or misplaced) and oracle.numel() else ()
    shown = bool(where) or oracle.dim() == 0
    return Comparison(
        candidate=mine,
        reference=own,
        ulp_norm=ulps,
        ulp_worst=ulp_worst,
        misplaced=misplaced,
        where=where,
        got=float(candidate[where]) if shown else 0.0,
        wanted=float(oracle[where]) if shown else 0.0,
    )


_Sums = tuple[list[float], list[float], int]
"""Squared errors of candidate and reference, squares of the oracle, count; the three largest; elements misplaced."""


def _all_finite(candidate: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> _Sums | None:
    """The usual case in eight passes over each piece; None where anything is infinite or NaN."""
    squares = torch.zeros(3, dtype=torch.float64, device=oracle.device)
    tops = torch.zeros(3, dtype=torch.float64, device=oracle.device)
    for piece in pieces(oracle.shape):
        o = oracle[piece].to(torch.float64)
        trio = (candidate[piece] - o, reference[piece] - o, o)
        squares += torch.stack([torch.linalg.vector_norm(t) for t in trio]).square()
        tops = torch.maximum(tops, torch.stack([torch.linalg.vector_norm(t, math.inf) for t in trio]))
    found, largest = squares.tolist(), tops.tolist()
    if not all(map(math.isfinite, (*found, *largest))):
        return None
    return [*found, float(oracle.numel())], largest, 0


def _masked(candidate: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> _Sums:
    """The same where some elements are infinite or NaN, which are judged by kind."""
    sums = torch.zeros(4, dtype=torch.float64, device=oracle.device)
    tops = torch.zeros(3, dtype=torch.float64, device=oracle.device)
    misplaced = torch.zeros((), dtype=torch.int64, device=oracle.device)
    for piece in pieces(oracle.shape):
        o, r, y = oracle[piece], reference[piece], candidate[piece]
        valid, fine = torch.isfinite(o) & torch.isfinite(r), torch.isfinite(y)
        misplaced += _misplaced(y, o, r).sum()
        trio = (
            torch.where(valid & fine, y.to(torch.float64) - o, 0.0),
            torch.where(valid, r.to(torch.float64) - o, 0.0),
            torch.where(valid, o.to(torch.float64), 0.0),
        )
        sums += torch.stack([*(t.square().sum() for t in trio), valid.sum(dtype=torch.float64)])
        tops = torch.maximum(tops, torch.stack([t.abs().max() for t in trio]))
    return sums.tolist(), tops.tolist(), int(misplaced)


def _misplaced(y: torch.Tensor, o: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Where the candidate is infinite or NaN and must not be, or must be and is not."""
    valid = torch.isfinite(o) & torch.isfinite(r)
    both = ~torch.isfinite(o) & ~torch.isfinite(r)
    same_kind = torch.where(torch.isnan(r), torch.isnan(y), y == r)
    return (valid & ~torch.isfinite(y)) | (both & ~same_kind)


def _worst_at(candidate: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor) -> tuple[int, ...]:
    """Index of the element that is furthest off; one of the wrong kind is further off than any number."""
    worst = -1.0
    found: tuple[int, ...] = ()
    for piece in pieces(oracle.shape):
        o, r, y = oracle[piece], reference[piece], candidate[piece]
        off = torch.nan_to_num((y.to(torch.float64) - o).abs(), nan=0.0, posinf=0.0)
        off = torch.where(torch.isfinite(o) & torch.isfinite(r), off, 0.0).masked_fill(_misplaced(y, o, r), math.inf)
        if (largest := float(off.max())) > worst:
            worst, found = largest, _index(piece, int(off.argmax()), tuple(off.shape), oracle.shape)
    return found


def compare_pointed(candidate: torch.Tensor, oracle: torch.Tensor, values: torch.Tensor, dim: int) -> Comparison:
    """Index results: the values that they point at along ``dim`` of ``values``, where ties may be broken either way."""
    out_of_range = int(((candidate < 0) | (candidate >= values.shape[dim])).sum())
    index = candidate.clamp(0, values.shape[dim] - 1)
    keep = index.dim() == values.dim()
    take = (index, oracle) if keep else (index.unsqueeze(dim), oracle.unsqueeze(dim))
    got, wanted = (torch.gather(values, dim, i.to(torch.int64)).to(torch.float64) for i in take)
    result = compare(got, wanted, wanted)
    return Comparison(
        candidate=result.candidate,
        reference=Errors(0.0, 0.0),
        ulp_norm=0.0,
        ulp_worst=0.0,
        misplaced=out_of_range + result.misplaced,
        where=result.where,
        got=result.got,
        wanted=result.wanted,
    )


def pointed_dim(indices: torch.Tensor, values: torch.Tensor) -> int | None:
    """The dim along which ``indices`` are the argmax or argmin of ``values``, if they are: this proves itself."""
    if indices.dtype != torch.int64 or not values.is_floating_point():
        return None
    for dim in range(values.dim()):
        kept, dropped = list(values.shape), list(values.shape)
        kept[dim] = 1
        del dropped[dim]
        if list(indices.shape) not in (kept, dropped):
            continue
        index = indices if indices.dim() == values.dim() else indices.unsqueeze(dim)
        if int(index.min()) < 0 or int(index.max()) >= values.shape[dim]:
            continue
        pointed = torch.gather(values, dim, index)
        if any(torch.equal(pointed, f(values, dim=dim, keepdim=True)) for f in (torch.amax, torch.amin)):
            return dim
    return None


def exact(candidate: torch.Tensor, reference: torch.Tensor) -> Comparison:
    wrong, largest = 0, 0.0
    index: tuple[int, ...] = ()
    for piece in pieces(reference.shape):
        y, r = candidate[piece], reference[piece]
        different = ~equal_mask(y, r)
        count = int(different.sum())
        if count and not wrong:
            index = _index(piece, int(different.flatten().to(torch.uint8).argmax()), tuple(r.shape), reference.shape)
        if count:
            largest = max(largest, float((y.to(torch.float64) - r.to(torch.float64)).abs().max()))
        wrong += count
    return Comparison(
        candidate=Errors(wrong / max(reference.numel(), 1), largest),
        reference=Errors(0.0, 0.0),
        ulp_norm=0.0,
        ulp_worst=0.0,
        where=index,
        got=float(candidate[index]) if wrong else 0.0,
        wanted=float(reference[index]) if wrong else 0.0,
    )


def _index(piece: tuple[Any, ...], flat: int, inner: tuple[int, ...], shape: torch.Size) -> tuple[int, ...]:
    """Position in the whole tensor of element ``flat`` of a piece."""
    local = []
    for size in reversed(inner):
        local.append(flat % size)
        flat //= size
    local.reverse()
    fixed = [p for p in piece if isinstance(p, int)]
    if len(piece) > len(fixed):
        local[0] += piece[-1].start
    result = (*fixed, *local)
    return result if len(result) == len(shape) else tuple(local)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements differ, NaN equal to NaN; all of them where shape or dtype differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), b.numel(), 1)
    return sum(int((~equal_mask(a[piece], b[piece])).sum()) for piece in pieces(a.shape))
