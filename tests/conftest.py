"""Fixtures for every test: a private cache folder, golden texts, and no GPU tests without a GPU."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtmc.data.hardware import detect
from mtmc.settings import get_settings

TESTS = Path(__file__).resolve().parent
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if detect() is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test has its own store and cache, and so have the child processes that it starts."""
    folder = tmp_path / "mtmc-cache"
    monkeypatch.setenv("MTMC_CACHE_DIR", str(folder))
    get_settings.cache_clear()
    yield folder
    get_settings.cache_clear()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(name, text)`` compares with (or writes) ``tests/golden/<test file>/<name>.txt``."""

    def compare(name: str, text: str) -> None:
        path = TESTS / "golden" / request.path.stem / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        if not path.exists():
            pytest.fail(f"no golden file {path.relative_to(TESTS.parent)}: write it with `make golden` and read it")
        wanted = path.read_text()
        if text != wanted:
            lines = wanted.splitlines(), text.splitlines()
            diff = "\n".join(difflib.unified_diff(*lines, "golden", "now", lineterm=""))
            pytest.fail(f"{name} differs from its golden file (`make golden` rewrites it):\n{diff}", pytrace=False)

    return compare
