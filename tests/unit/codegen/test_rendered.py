"""The text of a dozen kernels, and that each of them builds for the H200."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from mtmc.codegen.module import render
from mtmc.problem.problem import Kind, Problem
from mtmc.verify.build import SHARED_LIMIT, compile_kernel, resource_usage
from tests.unit.codegen.kernels import KERNELS, numbered, text_of


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, golden: Any) -> None:
    golden(name, text_of(KERNELS[name]()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_build_for_sm90(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real compile, without spills."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for name, make in KERNELS.items():
        candidate = render(numbered(make()), Problem(kind=Kind.MODULE, name=name))
        path = tmp_path / f"{name}.py"
        path.write_text(candidate.source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for signature in candidate.signatures:
            built = compile_kernel(getattr(module, signature.function), signature, 90)
            usage = resource_usage(built.asm["cubin"])
            assert not usage["spills"], f"{name}, {signature.function}: {usage}"
            assert built.metadata.shared <= SHARED_LIMIT[90]
