"""How numbers look: one place, so that every table and line agrees."""

from __future__ import annotations

MISSING = "–"


def times(value: float | None) -> str:
    """A speedup: ``1.34x``."""
    return MISSING if value is None else f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def percent(share: float | None) -> str:
    """A share of 1: ``67%``; a decimal only where rounding would claim all or nothing."""
    if share is None:
        return MISSING
    text = f"{share:.0%}"
    return f"{share:.1%}" if text in ("0%", "100%") and share not in (0.0, 1.0) else text


def milliseconds(ms: float | None) -> str:
    """``12.3 µs`` below a tenth of a millisecond, else ``1.234 ms``: four digits."""
    if ms is None:
        return MISSING
    return f"{ms * 1e3:.3g} µs" if ms < 0.1 else f"{ms:.4g} ms"
