"""Errors become one sentence and an exit code; nothing found is hidden behind a traceback."""

from __future__ import annotations

import json

import pytest

from mtmc.cli import app as application
from mtmc.errors import CaptureError, StoreError, UsageError


def end_of(error: BaseException, monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    """The exit code where a command raised ``error``."""

    def command() -> None:
        raise error

    monkeypatch.setattr(application, "app", command)
    monkeypatch.setattr("sys.argv", ["mtmc", *argv])
    with pytest.raises(SystemExit) as ended:
        application.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("--steps must be positive."), 2), (StoreError("The store is read-only."), 3)],
)
def test_one_sentence(
    error: UsageError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(error, monkeypatch) == code
    assert capsys.readouterr() == ("", f"mtmc: {error.message}\n")


def test_json_for_machines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert end_of(CaptureError("sort is not supported.", file="a.py", line=3), monkeypatch, "show", "--json") == 2
    assert json.loads(capsys.readouterr().out) == {
        "error": "CaptureError",
        "message": "a.py:3: sort is not supported.",
        "exit_code": 2,
    }


def test_a_bug_is_not_mistaken_for_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(ZeroDivisionError("x"), monkeypatch) == 70
    assert "Traceback" in capsys.readouterr().err


def test_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    assert end_of(KeyboardInterrupt(), monkeypatch) == 130
