"""Building without a card: resources are reported, errors named, and the later launch finds the binary."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mtmc.data.candidate import KernelSignature
from mtmc.verify.build import Builder

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(out + i, tl.load(x + i, mask=m) * scale + tl.load(y + i, mask=m), mask=m)
"""
ADD = KernelSignature(
    kernel="k0",
    function="add",
    args=(("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32"), ("scale", "fp32")),
    constexprs=(("BLOCK", 512),),
    aligned=("x", "y", "out", "n"),
)


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return Builder(tmp_path)


def test_a_kernel_reports_its_resources_and_warms_the_cache(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    (found,) = builder.build(SOURCE, [ADD.model_dump()], 90, launchers=False)
    assert found["error"] == "" and found["row"]["registers"] > 0 and found["row"]["spills"] == 0

    # A real launch up to where the card would be needed, with only the driver replaced.
    card = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
    )
    hits: list[bool] = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **told: hits.append(told["cache_hit"]))
    before = driver._active
    driver.set_active(card)
    try:
        module = builder._imported(SOURCE)
        x = torch.empty(4096)
        for n in (4096, 4095):
            module.add.run(x, x, x, n, 2.0, BLOCK=512, num_warps=4, num_stages=3, grid=(8,), warmup=True)
    finally:
        driver._active = before
    assert hits == [True, False], "the second length is not divisible by 16 and so is another kernel"


def test_a_kernel_that_does_not_compile_says_why(builder: Builder) -> None:
    bad = ADD.model_copy(update={"constexprs": (("BLOCK", 500),)})
    (found,) = builder.build(SOURCE, [bad.model_dump()], 90, launchers=False)
    assert "power of 2" in found["error"] and "CompilationError" in found["error"]
