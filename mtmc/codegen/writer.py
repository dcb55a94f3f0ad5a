"""An indent-aware line writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Writer:
    """Collects lines; ``with writer.indent("for ...:")`` opens a block."""

    def __init__(self, level: int = 0) -> None:
        self._lines: list[str] = []
        self._level = level

    def line(self, text: str = "") -> None:
        self._lines.append("    " * self._level + text if text else "")

    def lines(self, text: str) -> None:
        for line in text.splitlines():
            self.line(line)

    @contextmanager
    def indent(self, header: str) -> Iterator[None]:
        self.line(header)
        self._level += 1
        yield
        self._level -= 1

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"
