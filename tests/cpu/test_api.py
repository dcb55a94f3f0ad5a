"""``mtmc.optimize`` on a module: what comes back computes the same, is the same module, and refuses the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mtmc
from mtmc.api import Report, check_memory
from mtmc.errors import EnvironmentProblem, ProblemError, UsageError
from tests.cpu.api_block import Block, X


def test_runs_in_the_interpreter(saved) -> None:
    """``api_checks.py`` in a process of its own: Triton decides at import whether it interprets."""
    path, _ = saved
    checks = Path(__file__).with_name("api_checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", str(checks)]
    env = dict(os.environ, TRITON_INTERPRET="1", SAVED_BLOCK=str(path))
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, torch.Tensor]]]:
    """One optimised module, saved: the tests reload it, which must not search again."""
    torch.manual_seed(0)
    module = Block().eval()
    optimized = mtmc.optimize(module, X, steps=2, accept="correct")
    path = tmp_path_factory.mktemp("api") / "block.json"
    optimized.save(path)
    yield path, {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.fixture
def optimized(saved: tuple[Path, dict[str, torch.Tensor]]) -> mtmc.OptimizedModule:
    path, state = saved
    module = Block().eval()
    module.load_state_dict(state)
    return mtmc.load_optimized(path, module)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: m(torch.randn(4, 32)), r"shape \(4, 32\), not \(8, 32\)"),
        (lambda m: m(torch.randn(32)), r"shape \(32,\)"),
        (lambda m: m(X.double()), "float64, not torch.float32"),
        (lambda m: m(), "takes 1 arguments and got 0"),
        (lambda m: m([1.0]), "is a list, not a tensor"),
        (lambda m: m.train()(X), "made in evaluation mode and is now in training mode"),
        (lambda m: m(X), "on the CPU, and the kernels need a GPU"),
    ],
)
def test_refuses_what_it_was_not_made_for(optimized: mtmc.OptimizedModule, call, says: str) -> None:
    with torch.no_grad(), pytest.raises(UsageError, match=says):
        call(optimized)


def test_refuses_parameters_of_another_dtype(optimized: mtmc.OptimizedModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtmc.api._interpreted", lambda: True)
    with torch.no_grad(), pytest.raises(UsageError, match="is now torch.float16, it was torch.float32"):
        optimized.half()(X)


def test_refuses_to_lose_gradients(optimized: mtmc.OptimizedModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtmc.api._interpreted", lambda: True)
    with pytest.raises(UsageError, match="gradients"):
        optimized(X)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), pytest.raises(UsageError, match="autocast"):
        optimized(X)


def test_the_original_runs_where_the_user_said_so(saved, caplog: pytest.LogCaptureFixture) -> None:
    path, _ = saved
    module = mtmc.load_optimized(path, Block().eval(), on_unsupported="reference")
    with torch.no_grad(), caplog.at_level("WARNING", logger="mtmc"):
        for _ in range(2):
            assert module(torch.randn(4, 32)).shape == (4, 16)
    told = [record for record in caplog.records if "original Block runs instead" in record.message]
    assert len(told) == 1


def test_the_original_comes_back_where_nothing_is_faster() -> None:
    module = Block().eval()
    optimized = mtmc.optimize(module, X, steps=0)
    assert not optimized.report.optimized and optimized.report.correct
    assert "nothing was timed" in str(optimized.report)
    y = torch.randn(3, 32)
    assert optimized(y).requires_grad, "the original serves any call"


def test_reloading_needs_the_same_structure(saved, tmp_path: Path) -> None:
    path, _ = saved
    with pytest.raises(UsageError, match="has no norm.weight"):
        mtmc.load_optimized(path, torch.nn.Linear(32, 16))
    other = Block()
    other.layers[0] = torch.nn.Linear(32, 17)
    with pytest.raises(UsageError, match="layers.0.weight has shape"):
        mtmc.load_optimized(path, other)
    with pytest.raises(UsageError, match="can't be read"):
        mtmc.load_optimized(tmp_path / "missing.json", Block())


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="hold no tensor"):
        mtmc.optimize(Block(), ())
    with pytest.raises(UsageError, match="on_unsupported"):
        mtmc.optimize(Block(), X, on_unsupported="ignore")  # type: ignore[arg-type]

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ProblemError, match="Branches can't be exported"):
        mtmc.optimize(Branches(), X)


def test_too_little_memory_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr("mtmc.api.psutil.virtual_memory", Memory)
    with pytest.raises(EnvironmentProblem, match="GiB are free"):
        check_memory(Block(), (X,), "cpu")


def test_the_report_reads(optimized: mtmc.OptimizedModule) -> None:
    assert optimized.report.optimized and optimized.report.actions
    assert isinstance(optimized.report, Report) and str(optimized.report).startswith("Block: ")
