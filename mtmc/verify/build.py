"""Compile every generated kernel for its target without launching it, with or without a GPU.

The kernel's launch is imitated through Triton's own binder, so that specialisation, options and therefore the cache key
are those of the real launch: where there is a GPU, the later launch inside the locked region finds its binary on disk.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from mtmc.data.candidate import KernelSignature
from mtmc.data.evaluation import KernelBuild
from mtmc.log import get_logger

log = get_logger("verify")

SHARED_LIMIT = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
"""Bytes of shared memory that one block may use, by compute capability (CUDA C++ Programming Guide, technical
specifications by compute capability: opt-in maximum per block)."""


class Builder:
    """Serves build requests in a process that sees no GPU and so can't launch anything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: tuple[str, ModuleType] | None = None
        self._count = 0

    def build(
        self, source: str, signatures: list[dict[str, Any]], capability: int, launchers: bool
    ) -> list[dict[str, Any]]:
        """Compile these kernels of ``source``; one record a kernel, with ``error`` where it does not compile.

        ``launchers``: the kernels will be launched on this machine, so build what launches them too.
        """
        module = self._imported(source)
        return [self._one(module, KernelSignature(**s), capability, launchers) for s in signatures]

    def _one(self, module: ModuleType, signature: KernelSignature, capability: int, launch: bool) -> dict[str, Any]:
        started = time.perf_counter()
        row = KernelBuild(kernel=signature.kernel, function=signature.function)
        try:
            kernel = compile_kernel(getattr(module, signature.function), signature, capability)
        except Exception as raised:  # whatever a compiler raises is a finding, not a fault
            text = str(raised).strip() or type(raised).__name__
            return {"row": row.model_dump(), "error": f"{type(raised).__name__}: {_essence(text)}"}
        if launch:
            try:
                build_launcher(kernel)
            except Exception as raised:  # only warms a cache: the first launch builds it then
                log.debug("no launcher built for %s: %s", signature.function, raised)
        usage = resource_usage(kernel.asm["cubin"])
        row = row.model_copy(
            update={
                **usage,
                "shared_bytes": kernel.metadata.shared,
                "compile_s": round(time.perf_counter() - started, 4),
            }
        )
        limit = SHARED_LIMIT.get(capability)
        over = limit is not None and kernel.metadata.shared > limit
        error = f"needs {kernel.metadata.shared} bytes of shared memory, sm_{capability} has {limit}" if over else ""
        return {"row": row.model_dump(), "error": error}

    def _imported(self, source: str) -> ModuleType:
        if self._loaded is None or self._loaded[0] != source:
            self._count += 1
            name = f"candidate_build_{id(self)}_{self._count}"
            path = self.folder / f"{name}.py"
            path.write_text(source, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            self._loaded = (source, module)
        return self._loaded[1]


def compile_kernel(function: Any, signature: KernelSignature, capability: int) -> Any:
    """The compiled kernel (``triton.compiler.CompiledKernel``) as a launch with this signature would get it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    binder = create_function_from_signature(function.signature, function.params, backend)
    values = dict(signature.constexprs)
    for name, kind in signature.args:
        values[name] = _stand_in(kind, name in signature.aligned)
    kwargs: dict[str, Any] = {"num_warps": signature.num_warps, "num_stages": signature.num_stages, "debug": False}
    if "instrumentation_mode" in backend.parse_options({}).__dict__:
        kwargs["instrumentation_mode"] = triton.knobs.compilation.instrumentation_mode
    arguments = {p.name: values[p.name] for p in function.params if p.name in values}
    bound, specialization, options = binder(**arguments, **kwargs)
    options, types, constexprs, attrs = function._pack_args(backend, kwargs, bound, specialization, options)
    return triton.compile(ASTSource(function, types, constexprs, attrs), target=target, options=options.__dict__)


def build_launcher(compiled: Any) -> None:
    """Leave the C launcher of a kernel in Triton's cache: up to Triton 3.6 there is one for every signature, compiled
    at the first launch, half a second that the card would wait for. Needs libcuda, but no card."""
    import triton
    from triton.backends.nvidia.driver import CudaLauncher

    if tuple(int(n) for n in triton.__version__.split(".")[:2]) < (3, 7):
        CudaLauncher(compiled.src, compiled.metadata)


class _Pointer:
    """Stands for a tensor: Triton asks a pointer for its dtype and its alignment only."""

    def __init__(self, dtype: Any, aligned: bool) -> None:
        self.dtype = dtype
        self._address = 1 << 20 if aligned else (1 << 20) + 4

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        return 0


def _stand_in(kind: str, aligned: bool) -> Any:
    """A value that Triton specialises to ``kind``."""
    if kind.startswith("tensordesc"):
        return _descriptor(kind)
    if kind.startswith("*"):
        return _Pointer(_torch_dtype(kind.removeprefix("*k").removeprefix("*")), aligned)
    match kind:
        case "i64":
            return (1 << 40) + (0 if aligned else 1)
        case "fp32" | "fp64" | "f32":
            return 1.5
        case "u1" | "i1":
            return True
    return 32 if aligned else 33


def _descriptor(kind: str) -> Any:
    """``tensordesc<fp16[128, 64]>``: a contiguous tensor described in blocks of that shape."""
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    found = re.fullmatch(r"tensordesc<(\w+)\[([\d, ]+)\].*>", kind)
    if found is None:
        raise ValueError(f"{kind} is not a tensor descriptor type")
    block = [int(n) for n in found[2].split(",")]
    shape = [max(n, 64) for n in block]
    base = torch.empty(0, dtype=_torch_dtype(found[1]))
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptor(base, shape, strides, block)


def _torch_dtype(name: str) -> Any:
    import torch

    names = {
        "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8e4nv": "float8_e4m3fn",
        "fp8e5": "float8_e5m2", "i1": "bool", "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32",
        "i64": "int64",
    }  # fmt: skip
    return getattr(torch, names[name])


def resource_usage(cubin: bytes) -> dict[str, int | None]:
    """Registers and spilled bytes, as ``cuobjdump --dump-resource-usage`` reports them; None where it is missing."""
    tool = cuobjdump()
    if tool is None:
        return {"registers": None, "spills": None}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    registers, stack, local = (re.search(rf"\b{name}:(\d+)", text) for name in ("REG", "STACK", "LOCAL"))
    spills = max((int(m[1]) for m in (stack, local) if m), default=0)
    return {"registers": int(registers[1]) if registers else None, "spills": spills if registers else None}


@functools.cache
def cuobjdump() -> str | None:
    """The tool that Triton ships, or the one on the path."""
    import shutil

    import triton

    shipped = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(shipped) if shipped.is_file() else shutil.which("cuobjdump")


def _essence(text: str) -> str:
    """The lines of a compiler's message that say what is wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    return " | ".join(lines if len(lines) <= 6 else [*lines[:3], *lines[-3:]])[:2000]
