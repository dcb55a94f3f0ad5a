"""``mtmc optimize`` and ``mtmc show`` as a user runs them, and every bad input: one sentence and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtmc.cli.app import main
from mtmc.errors import Exit

PROBLEM = """
import torch
import torch.nn as nn

ROWS = 8


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.rand(ROWS, 32)]


def get_init_inputs():
    return [32]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "block.py"
    path.write_text(PROBLEM)
    return path


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """``mtmc`` in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["mtmc", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[2]), CUDA_VISIBLE_DEVICES="")
    return subprocess.run([sys.executable, "-m", "mtmc", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def test_optimize_writes_a_file_that_runs_without_mtmc(file: Path, tmp_path: Path) -> None:
    done = run("optimize", str(file), "--json", "--steps", "2", cwd=tmp_path)
    assert done.returncode == Exit.FINE, done.stderr
    result = json.loads(done.stdout)
    assert result["correct"] and result["winner"] is None and result["ms"] is None
    assert result["estimate_ms"] > 0 and result["builds"] and result["builds"][0]["registers"] > 0
    assert result["pure"] and len(result["actions"]) >= 1
    assert "as captured" in done.stderr and "Nothing was timed" in done.stderr.splitlines()[-1]
    written = tmp_path / "block_new.py"
    text = written.read_text()
    assert result["output"] == "block_new.py" and "import mtmc" not in text and "--check block_new.py" in text
    use = (
        "import torch, block, block_new\n"
        "torch.manual_seed(0); old = block.Model(32); torch.manual_seed(0); new = block_new.ModelNew(32)\n"
        "x = block.get_inputs()[0]\n"
        "with torch.no_grad(): torch.testing.assert_close(new(x), old(x))\n"
        "import sys; assert 'mtmc' not in sys.modules\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TRITON_INTERPRET": "1"}
    used = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert used.returncode == 0, used.stderr
    checked = run("optimize", str(file), "--check", "block_new.py", cwd=tmp_path)
    assert checked.returncode == Exit.FINE and "accepted" in checked.stdout
    written.write_text(text.replace("return t1", "return t1 + 1") if "return t1" in text else text + "\n1/0\n")
    rejected = run("optimize", str(file), "--check", "block_new.py", cwd=tmp_path)
    assert rejected.returncode == Exit.NOTHING_FASTER, rejected.stdout


def test_show_prints_program_and_actions(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "show", str(file)) == 0
    shown = capsys.readouterr().out
    for part in ("aten.layer_norm", "aten.relu", "Roofline estimates", "fuse k0 (layer_norm, line 14)", "stop"):
        assert part in shown, part
    assert run_main(monkeypatch, "show", str(file), "--json", "--actions", "3") == 0
    fields = json.loads(capsys.readouterr().out)
    assert len(fields["actions"]) == 3 and fields["actions_cut"] > 0
    assert [kernel["id"] for kernel in fields["kernels"]] == ["k0", "k1"]


BROKEN = {
    "no Model": ("def get_inputs():\n    return []\n", "does not define Model"),
    "not Python": ("class Model(:\n", "does not parse"),
    "empty": ("\n", "is empty"),
    "get_inputs raises": (PROBLEM.replace("torch.rand(ROWS, 32)", "torch.rand(ROWS, None)"), "get_inputs raised"),
    "shape mismatch": (PROBLEM.replace("torch.rand(ROWS, 32)", "torch.rand(ROWS, 33)"), ":14: "),
    "constructor raises": (PROBLEM.replace("LayerNorm(width)", "LayerNorm(undefined)"), "undefined"),
    "not exportable": (PROBLEM.replace("torch.relu(", "x if x.sum() > 0 else torch.relu("), ":14: "),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_file_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, says = BROKEN[name]
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert run_main(monkeypatch, "optimize", str(path), "-o", str(tmp_path / "out.py")) == Exit.WRONG_USE
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("mtmc: ")]
    assert len(lines) == 1 and says in captured.err and "Traceback" not in captured.err
    assert not (tmp_path / "out.py").exists()


def test_a_missing_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "optimize", "/nowhere/x.py", "--json") == Exit.WRONG_USE
    captured = capsys.readouterr()
    assert "does not exist" in captured.err
    assert json.loads(captured.out)["error"] == "ProblemError"


def test_an_unknown_policy(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "optimize", str(file), "--policy", "clever") == Exit.WRONG_USE
    assert "heuristic, random, first" in capsys.readouterr().err


def test_an_output_that_cannot_be_written(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "optimize", str(file), "-o", "/nowhere/out.py") == Exit.WRONG_USE
    assert "the folder /nowhere does not exist" in capsys.readouterr().err
    assert run_main(monkeypatch, "optimize", str(file), "-o", str(tmp_path)) == Exit.WRONG_USE
    assert "it is a folder" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written(
    file: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    private_cache.parent.mkdir(exist_ok=True)
    private_cache.write_text("a file where the folder should be")
    assert run_main(monkeypatch, "optimize", str(file)) == Exit.ENVIRONMENT
    assert "MTMC_CACHE_DIR" in capsys.readouterr().err


def test_no_triton(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_main(monkeypatch, "optimize", str(file)) == Exit.ENVIRONMENT
    assert "Triton is not installed" in capsys.readouterr().err


def test_no_gpu_where_one_was_asked_for(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run_main(monkeypatch, "optimize", str(file), "--device", "cuda:0") == Exit.ENVIRONMENT
    assert "mtmc doctor" in capsys.readouterr().err
