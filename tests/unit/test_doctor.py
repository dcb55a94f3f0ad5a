"""The doctor reports, advises and never raises."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from mtmc.cli import doctor
from mtmc.settings import get_settings


def command() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    doctor.register(app)
    return app


def test_json_lists_checks_and_variables() -> None:
    result = CliRunner().invoke(command(), ["doctor", "--quick", "--json"])
    report = json.loads(result.stdout)
    found = {check["name"]: check["status"] for check in report["checks"]}
    assert result.exit_code == 0
    assert (found["torch"], found["triton"], found["cache folder"]) == ("ok", "ok", "ok")
    assert "MTMC_CACHE_DIR" in {variable["name"] for variable in report["variables"]}


def test_an_unwritable_cache_is_missing_and_exits_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MTMC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    get_settings.cache_clear()
    result = CliRunner().invoke(command(), ["doctor", "--quick"])
    assert result.exit_code == 3
    assert "Needed and missing: cache folder." in result.stdout


def test_a_failing_probe_shows_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nRuntimeError: ptxas not found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    check = doctor._probe("Triton compiles for sm_90", "compile", interpret=False)
    assert (check.status, check.found) == ("missing", "RuntimeError: ptxas not found")
    assert "pip install" in check.advice


@pytest.mark.slow
def test_triton_compiles_and_interprets() -> None:
    checks = {check.name: check for check in doctor.examine()}
    assert checks["Triton compiles for sm_90"].status == "ok", checks
    assert checks["Triton interpreter"].status == "ok", checks
