"""Triton's interpreter, which runs generated kernels on the CPU: repairs that must be in place before a kernel runs."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np


def repair() -> None:
    """Make ``tl.dot`` multiply bfloat16 values. Call it once in a process that has ``TRITON_INTERPRET=1``.

    The interpreter keeps bfloat16 as uint16 and its dot, unlike its other operations, multiplies the bit patterns
    (Triton 3.6 and 3.7).
    """
    if importlib.util.find_spec("triton") is None:
        return  # nothing to run generated kernels with; library calls still work
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot = InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    InterpreterBuilder.create_dot = lambda self, a, b, *more: dot(self, widened(a), widened(b), *more)
