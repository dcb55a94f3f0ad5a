"""The line budget: a file of mtmc over 600 lines fails, those over 400 are listed."""

from __future__ import annotations

import sys
from pathlib import Path

BUDGET, HARD_STOP = 400, 600
PACKAGE = Path(__file__).resolve().parent.parent / "mtmc"


def main() -> int:
    lines = {path: len(path.read_text().splitlines()) for path in sorted(PACKAGE.rglob("*.py"))}
    over = {path: count for path, count in lines.items() if count > BUDGET}
    for path, count in sorted(over.items(), key=lambda item: -item[1]):
        word = "TOO LONG" if count > HARD_STOP else "over the budget"
        print(f"line budget: {count} lines, {word}: {path.relative_to(PACKAGE.parent)}")
    print(f"line budget: {len(lines)} files, {sum(lines.values())} lines, {len(over)} over {BUDGET}")
    return int(any(count > HARD_STOP for count in over.values()))


if __name__ == "__main__":
    sys.exit(main())
