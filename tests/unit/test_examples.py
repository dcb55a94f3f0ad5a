"""Every example loads as KernelBench loads it and runs on the CPU at a small size."""

from __future__ import annotations

import ast
import types
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
SMALL = {"HEADS": 2, "LAYERS": 2}
"""Sizes are cut to 16, but a width must be a multiple of its heads and two layers stay two."""


def load(path: Path, **sizes: int) -> types.ModuleType:
    """The example with its size constants replaced, as a module of its own."""
    module = types.ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    vars(module).update(sizes)
    return module


def sizes(path: Path) -> dict[str, int]:
    """Module-level integer constants."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int)
    }


def small(path: Path) -> types.ModuleType:
    return load(path, **{name: min(size, SMALL.get(name, 16)) for name, size in sizes(path).items()})


def run(module: types.ModuleType) -> torch.Tensor:
    torch.manual_seed(0)
    model = module.Model(*module.get_init_inputs())
    with torch.no_grad():
        out = model(*module.get_inputs())
    assert isinstance(out, torch.Tensor)
    return out


def test_there_are_about_a_dozen() -> None:
    assert 12 <= len(FILES) <= 16


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_runs_and_is_deterministic(path: Path) -> None:
    first, second = run(small(path)), run(small(path))
    assert first.isfinite().all() and first.numel() > 0
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_sizes_are_constants_and_the_docstring_says_what_an_expert_does(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc is not None and len(doc.splitlines()) == 2 and "xpert" in doc
    assert sizes(path), "no size constant at module level"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_is_in_the_table(path: Path) -> None:
    assert f"[{path.name}]({path.name})" in (EXAMPLES / "README.md").read_text()


def test_causal_attention_ignores_the_future() -> None:
    module = small(EXAMPLES / "transformer_block.py")
    model = module.Model(*module.get_init_inputs())
    (x,) = module.get_inputs()
    changed = x.clone()
    changed[:, -1] += 1
    with torch.no_grad():
        torch.testing.assert_close(model(x)[:, :-1], model(changed)[:, :-1])


def test_batch_norm_updates_its_state() -> None:
    module = small(EXAMPLES / "batch_norm_relu.py")
    model = module.Model(*module.get_init_inputs())
    model(*module.get_inputs())
    assert int(model.norm.num_batches_tracked) == 1 and bool((model.norm.running_mean != 0).any())
