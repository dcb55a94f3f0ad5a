"""Settings come from MTMC_* variables and nowhere else; mistakes are one clear sentence."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mtmc.errors import CaptureError, Exit, MtmcError, StoreError, UsageError
from mtmc.settings import cache_dir, get_settings, gpu_lock_path, variables, visible_gpu


def set_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    get_settings.cache_clear()


def test_values_are_read_and_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variable(monkeypatch, "MTMC_JUDGE_TIMEOUT_S", "7.5")
    set_variable(monkeypatch, "MTMC_KEEP_FILES", "1")
    set_variable(monkeypatch, "MTMC_DEVICE", "cuda:3")
    settings = get_settings()
    assert (settings.judge_timeout_s, settings.keep_files, settings.device) == (7.5, True, "cuda:3")


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variable(monkeypatch, "MTMC_DEVICE", "")
    assert get_settings().device == "auto"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MTMC_JUDGE_TIMEOUT_S", "soon"),
        ("MTMC_DEVICE", "tpu"),
        ("MTMC_LOG", "loud"),
        ("MTMC_COMPILE_WORKERS", "-1"),
    ],
)
def test_a_bad_value_names_the_variable(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    set_variable(monkeypatch, name, value)
    with pytest.raises(UsageError, match=f"{name} has the value '{value}'"):
        get_settings()


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variable(monkeypatch, "MTMC_CACHE_DIRECTORY", "x")
    with pytest.raises(UsageError, match="MTMC_CACHE_DIRECTORY is not one .* MTMC_CACHE_DIR"):
        get_settings()


def test_every_variable_is_documented() -> None:
    assert {"MTMC_CACHE_DIR", "MTMC_LOG", "MTMC_DEVICE", "MTMC_GPU_LOCK"} <= {v.name for v in variables()}
    assert all(v.doc.endswith(".") for v in variables())


def test_the_cache_folder_is_made(private_cache: Path) -> None:
    assert cache_dir("kernels") == private_cache / "kernels"
    assert (private_cache / "kernels").is_dir()


def test_an_unwritable_cache_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A file in the way fails for root too, unlike a folder without write permission.
    (tmp_path / "file").write_text("")
    set_variable(monkeypatch, "MTMC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(StoreError, match="can't be written .* set MTMC_CACHE_DIR") as caught:
        cache_dir()
    assert caught.value.exit_code == Exit.ENVIRONMENT


def test_the_lock_is_one_a_device_unless_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert gpu_lock_path("cuda:0") != gpu_lock_path("cuda:1")
    set_variable(monkeypatch, "MTMC_GPU_LOCK", str(tmp_path / "lock"))
    assert gpu_lock_path("cuda:1") == tmp_path / "lock"


@pytest.mark.parametrize(
    ("given", "index", "wanted"),
    [
        ("2,3", 1, "3"),
        ("GPU-1234", 0, "GPU-1234"),
        ("", 0, None),
        ("-1", 0, None),
        ("1,-1,2", 1, None),
        ("1", 1, None),
    ],
)
def test_visible_devices(monkeypatch: pytest.MonkeyPatch, given: str, index: int, wanted: str | None) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpu(index) == wanted


def test_a_capture_error_keeps_its_line_between_processes() -> None:
    error = pickle.loads(pickle.dumps(CaptureError("sort has no meaning here.", file="a.py", line=12)))
    assert (str(error), error.file, error.line) == ("a.py:12: sort has no meaning here.", "a.py", 12)
    assert isinstance(error, MtmcError) and error.exit_code == Exit.WRONG_USE
