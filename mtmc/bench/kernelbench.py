"""KernelBench (Ouyang et al., 2025) from the user's own checkout: ``level<N>/<number>_<name>.py``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mtmc.bench.suite import BenchProblem
from mtmc.errors import BenchError


class KernelBench:
    """One level. ``root`` is the repository, or the folder that holds the ``level<N>`` folders."""

    def __init__(self, root: str | Path, level: int) -> None:
        self.root, self.level = Path(root).expanduser(), level

    @property
    def name(self) -> str:
        return f"kernelbench/level{self.level}"

    def folder(self) -> Path:
        """The level's folder.

        Raises:
            BenchError: there is none below ``root``.
        """
        for base in (self.root, self.root / "KernelBench"):
            if (folder := base / f"level{self.level}").is_dir():
                return folder
        raise BenchError(
            f"There is no KernelBench level {self.level} in {self.root} (looked for level{self.level} and "
            f"KernelBench/level{self.level}). Clone https://github.com/ScalingIntelligence/KernelBench and "
            "give its "
            "folder as --root."
        )

    def problems(self) -> Sequence[BenchProblem]:
        folder = self.folder()
        found: dict[int, BenchProblem] = {}
        for path in folder.glob("*.py"):
            if not (match := re.match(r"(\d+)_", path.name)):
                continue
            number = int(match[1])
            if number in found:
                raise BenchError(f"{folder} has two problems {number}: {found[number].name} and {path.stem}.")
            found[number] = BenchProblem(suite=self.name, number=number, name=path.stem, path=str(path.resolve()))
        if not found:
            raise BenchError(f"The folder {folder} holds no file named like 1_Name.py; is it a KernelBench checkout?")
        return [found[number] for number in sorted(found)]
