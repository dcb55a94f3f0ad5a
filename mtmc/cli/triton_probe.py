"""Does Triton work here? ``python -m mtmc.cli.triton_probe compile|interpret|run`` prints one line or fails.

Run by ``mtmc doctor`` in a child process: Triton decides at import whether it interprets, and a broken
toolchain or driver must not take the doctor with it.
"""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mtmc.data.hardware import H200

N = 1000


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


def compile_for_h200() -> str:
    """Build the kernel for sm_90, with or without a GPU."""
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    major, minor = H200.capability
    source = ASTSource(double, signature=signature, constexprs={"BLOCK": 256})
    binary = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, 32))
    return f"{len(binary.asm['cubin'])} bytes for {H200.target}"


def run(device: str) -> str:
    """Launch the kernel and compare (``TRITON_INTERPRET=1`` makes it run on the CPU)."""
    x = torch.randn(N, device=device)
    out = torch.empty_like(x)
    double[(triton.cdiv(N, 256),)](x, out, N, BLOCK=256)
    torch.testing.assert_close(out, 2 * x)
    return f"{N} elements right on {device}"


if __name__ == "__main__":
    probes = {"compile": compile_for_h200, "interpret": lambda: run("cpu"), "run": lambda: run("cuda")}
    sys.stdout.write(probes[sys.argv[1]]() + "\n")
