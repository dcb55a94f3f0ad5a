from __future__ import annotations

from pathlib import Path

import pytest

from mtmc.bench.kernelbench import KernelBench
from mtmc.bench.suite import select
from mtmc.errors import BenchError, UsageError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "KernelBench" / "level2"
    folder.mkdir(parents=True)
    for name in ("10_c.py", "2_b.py", "1_a.py", "__init__.py", "readme.md"):
        (folder / name).write_text("")
    return tmp_path


@pytest.mark.parametrize("below", ["", "KernelBench"])
def test_problems_by_number(root: Path, below: str) -> None:
    problems = KernelBench(root / below, 2).problems()
    assert [p.number for p in problems] == [1, 2, 10]
    assert problems[2].name == "10_c" and problems[2].suite == "kernelbench/level2"
    assert Path(problems[2].path).is_absolute()


def test_unusable_folders(root: Path) -> None:
    with pytest.raises(BenchError, match="no KernelBench level 1"):
        KernelBench(root, 1).problems()
    (root / "level1").mkdir()
    with pytest.raises(BenchError, match="holds no file"):
        KernelBench(root, 1).problems()
    (root / "KernelBench" / "level2" / "2_again.py").write_text("")
    with pytest.raises(BenchError, match="two problems 2"):
        KernelBench(root, 2).problems()


def test_selection(root: Path) -> None:
    problems = KernelBench(root, 2).problems()
    assert [p.number for p in select(problems, None)] == [1, 2, 10]
    assert [p.number for p in select(problems, " 10, 1 - 2")] == [1, 2, 10]
    assert [p.number for p in select(problems, "2")] == [2]


@pytest.mark.parametrize("text", ["a", "1-", "2-1", "1,,2", "3", "1-10"])
def test_bad_selections_are_one_sentence(root: Path, text: str) -> None:
    with pytest.raises(UsageError):
        select(KernelBench(root, 2).problems(), text)
