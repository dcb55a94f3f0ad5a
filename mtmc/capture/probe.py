"""What the reference really does with the operands of its matrix products, measured operation by operation.

PyTorch computes linear and matmul in float32 by default but lets cuDNN round the operands of a convolution to 11
significant bits (TF32), on some shapes and not on others. So each such call is run twice on the device, as the
reference runs it and with TF32 off: equal results mean float32 (``exact``), different ones mean ``tf32``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from mtmc.capture.library import run_kernel
from mtmc.ir.codec import from_json
from mtmc.ir.index import Index
from mtmc.ir.program import Buffer, Call, Kernel, Program, Ref, Role
from mtmc.ir.types import DType
from mtmc.log import get_logger

log = get_logger("capture")

_CONVOLUTIONS = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "lstm", "gru", "rnn_tanh", "rnn_relu",
})  # fmt: skip
"""Run by cuDNN, under ``torch.backends.cudnn.allow_tf32``."""
_PRODUCTS = frozenset({
    "linear", "matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "einsum", "scaled_dot_product_attention",
})  # fmt: skip
"""Run by cuBLAS, under ``torch.backends.cuda.matmul.allow_tf32``."""
_ELEMENTS = 1 << 26
"""Largest tensor to measure with; a larger batch is cut (values do not matter, the algorithm's choice does)."""
_DIFFERENT = 3e-5
"""Relative difference (norm) above which operands were rounded: TF32 gives 3e-4, another summation order 1e-6."""


@dataclass(frozen=True)
class Rounding:
    """Result of :func:`measure_rounding`."""

    of_kernel: dict[str, str] = field(default_factory=dict)
    """Kernel id to ``exact`` or ``tf32``, for every kernel that multiplies matrices or convolves."""
    measured: bool = False
    """False where no device could be asked: then ``exact`` is an assumption, the stricter one."""
    device: str = "cpu"


def measure_rounding(program: Program, device: str = "cuda", seed: int = 0) -> Rounding:
    """Measure the operand rounding of every convolution and matrix product of a Program on a device.

    The precision flags of this process are those of the reference. Needs memory for one operation at a time. On a
    device without TF32 (a CPU) nothing is run and everything is assumed ``exact``.
    """
    kernels = [kernel for kernel in program.kernels if _operation(kernel)]
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return Rounding({kernel.id: "exact" for kernel in kernels}, False, device)
    found: dict[str, str] = {}
    known: dict[tuple[object, ...], str] = {}
    for kernel in kernels:
        key = _key(program, kernel)
        if key not in known:
            known[key] = _measure(program, kernel, device, seed)
        found[kernel.id] = known[key]
    return Rounding(found, True, device)


def measure(program: str, device: str) -> dict[str, str]:
    """:func:`measure_rounding` for another process: a Program as JSON in, the rounding of each kernel out."""
    return measure_rounding(from_json(program), device).of_kernel


def with_rounding(program: Program, of_kernel: Mapping[str, str]) -> Program:
    """The Program with each kernel's measured rounding."""
    kernels = (replace(k, rounding=of_kernel.get(k.id, k.rounding)) for k in program.kernels)
    return replace(program, kernels=tuple(kernels))


def is_convolution(kernel: Kernel) -> bool:
    """True where cuDNN runs the kernel, which may round operands by default."""
    return _operation(kernel) in _CONVOLUTIONS


def _operation(kernel: Kernel) -> str | None:
    """The name of the kernel's matrix product or convolution, None where it has none."""
    names = [call.target.split(".")[1] for call in kernel.calls if not call.view]
    return next((name for name in names if name in _CONVOLUTIONS | _PRODUCTS), None)


def _key(program: Program, kernel: Kernel) -> tuple[object, ...]:
    """Equal for kernels that make the same call on tensors of the same layout."""
    names: dict[str, int] = {}
    parts: list[object] = []
    for call in kernel.calls:
        for name in call.refs():
            if name in program.table and name not in names:
                buffer = program.buffer(name)
                parts.append((buffer.dtype, buffer.shape, buffer.strides))
            names.setdefault(name, len(names))
        plain = [arg for arg in call.args if not isinstance(arg, Ref)]
        parts.append((call.target, str(plain), str(call.kwargs), tuple(names[name] for name in call.refs())))
        for result in call.results:
            if result is not None:
                names.setdefault(result, len(names))
    return tuple(parts)


def _measure(program: Program, kernel: Kernel, device: str, seed: int) -> str:
    operation = _operation(kernel)
    allowed = torch.backends.cudnn.allow_tf32 if operation in _CONVOLUTIONS else torch.backends.cuda.matmul.allow_tf32
    inputs = [program.buffer(name) for call in kernel.calls for name in call.refs() if name in program.table]
    if not allowed or any(buffer.dtype not in (DType.F32, DType.I64, DType.BOOL) for buffer in inputs):
        return "exact"
    dims = {dim.name: min(dim.limit, 64) for dim in program.dims}
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {b.name: _random(b, device, generator, dims, _may_cut(kernel, b)) for b in inputs}
    with torch.no_grad():
        as_reference = run_kernel(kernel, tensors, device, dims)
        with _without_tf32():
            exact = run_kernel(kernel, tensors, device, dims)
    for name, value in exact.items():
        gap = (as_reference[name].double() - value.double()).norm()
        if gap > _DIFFERENT * value.double().norm():
            log.debug("%s (%s) rounds its operands to TF32", kernel.id, kernel.note)
            return "tf32"
    return "exact"


def _may_cut(kernel: Kernel, buffer: Buffer) -> bool:
    """True where dimension 0 is a batch that can be cut: the activation of a convolution that is called directly."""
    (*views, call) = kernel.calls
    first = call.args[0] if call.args else None
    return not views and _is_convolution(call) and first == Ref(buffer.name) and buffer.role is not Role.PARAMETER


def _is_convolution(call: Call) -> bool:
    return call.target.split(".")[1].startswith("conv")


def _random(
    buffer: Buffer, device: str, generator: torch.Generator, dims: dict[str, int], may_cut: bool
) -> torch.Tensor:
    shape = [_value(extent, dims) for extent in buffer.shape]
    strides = [_value(stride, dims) for stride in buffer.strides]
    if may_cut:
        while (
            shape[0] > 4 and buffer.numel.evaluate(dims) // max(_value(buffer.shape[0], dims), 1) * shape[0] > _ELEMENTS
        ):
            shape[0] //= 2
    dtype = getattr(torch, buffer.dtype.value)
    out = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return out.normal_(generator=generator) if dtype.is_floating_point else out.zero_()


def _value(index: Index, dims: dict[str, int]) -> int:
    return int(index.evaluate(dims))


@contextmanager
def _without_tf32() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul
