"""A result file: JSON lines, the header first, then one row a problem in the order they finished."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from mtmc.bench.row import FORMAT, BenchHeader, BenchRow
from mtmc.errors import BenchError


def read(path: str | Path) -> tuple[BenchHeader, dict[str, BenchRow]]:
    """Header and rows by problem, sorted by number; of two rows for one problem the later counts.

    A last line without its end was cut by a crash and is left out.

    Raises:
        BenchError: no such file, or not a result file.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"The result file {path} can't be read ({error}).") from error
    number = 1
    try:
        header = BenchHeader.model_validate_json(lines[0])
        rows = {}
        for number, line in enumerate(lines[1:], 2):  # noqa: B007
            row = BenchRow.model_validate_json(line)
            rows[row.problem] = row
    except (IndexError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "it is empty"
        raise BenchError(
            f"{path} is not a result file of mtmc bench (line {number}: {reason}; this version reads format {FORMAT})."
        ) from error
    return header, dict(sorted(rows.items(), key=lambda item: (item[1].number, item[0])))


class ResultFile:
    """Appends rows, each flushed to the disk before the next begins."""

    def __init__(self, path: str | Path, header: BenchHeader, resume: bool | None = None) -> None:
        """Open for appending.

        Args:
            path: created with its folder where missing.
            header: of this run.
            resume: True continues the file, which must have the same fingerprint; False sets an old file
                aside (``.old-<time>``) and begins anew; None continues where the fingerprint agrees.

        Raises:
            BenchError: another configuration's results, or a file that can't be written.
        """
        self.path = Path(path)
        self.rows: dict[str, BenchRow] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size and resume is False:
                self.path.rename(self.path.with_name(f"{self.path.name}.old-{time.time_ns() // 1_000_000}"))
            cut = self._continue(header) if self.path.exists() else 0
            # Unbuffered: after a full disk, close() must not try to write the lost line again.
            self._file = open(self.path, "r+b" if cut else "wb", buffering=0)
            self._file.truncate(cut)
            self._file.seek(cut)
            if not cut:
                self._line(header.model_dump_json())
        except OSError as error:
            raise BenchError(
                f"The result file {self.path} can't be written ({error.strerror or error}); choose another --out."
            ) from error

    def _continue(self, header: BenchHeader) -> int:
        """Read the rows of the file that is there; returns its bytes without a half-written last line."""
        whole = self.path.read_bytes()
        cut = whole.rfind(b"\n") + 1
        if not cut:
            return 0
        old, self.rows = read(self.path)
        if old.fingerprint != header.fingerprint:
            raise BenchError(
                f"{self.path} holds results of another configuration ({_difference(old, header)}). "
                "Give --fresh to set them aside, or another --out."
            )
        return cut

    def append(self, row: BenchRow) -> None:
        """Raises: BenchError: the disk is full or gone; rows before this one are safe."""
        self.rows[row.problem] = row
        try:
            self._line(row.model_dump_json())
        except OSError as error:
            raise BenchError(
                f"A row can't be added to {self.path} ({error.strerror or error}); the rows before it are "
                "safe. "
                "Free some space and run the same command again."
            ) from error

    def extend(self, rows: Iterable[BenchRow]) -> None:
        for row in rows:
            self.append(row)

    def _line(self, text: str) -> None:
        rest = memoryview(text.encode() + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _difference(old: BenchHeader, new: BenchHeader) -> str:
    """The first thing in which two headers differ, in words."""

    def facts(header: BenchHeader) -> dict[str, str]:
        card = f"{header.hardware.name}, driver {header.hardware.driver}" if header.hardware else "no GPU"
        extra = {"suite": header.suite, "hardware": card, "format": str(header.format)}
        return extra | {**header.versions} | {f"--{name}": json.dumps(value) for name, value in header.flags.items()}

    a, b = facts(old), facts(new)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    return "; ".join(f"{n}: {a.get(n, 'none')} there, {b.get(n, 'none')} now" for n in names[:3])
