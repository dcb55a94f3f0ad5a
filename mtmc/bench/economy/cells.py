"""Numbers as the text of a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mtmc.bench.economy.figures import Spread


def step_word(count: int) -> str:
    return "step" if count == 1 else "steps"


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}%"


def optional(value: float | None) -> str:
    return "–" if value is None else percent(value)


def signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:+.1f}%"


def number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def factor(value: float | None) -> str:
    return "–" if not value else f"{value:.3f}"


def seconds(found: Spread | None) -> str:
    return f"{found.median:.2f} ({found.high:.2f})" if found else "–"


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))
