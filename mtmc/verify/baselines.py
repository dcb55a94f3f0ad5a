"""What a candidate has to beat: the module under torch.compile, and eager with lower precision allowed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from filelock import FileLock

from mtmc.problem.tree import bytes_of, map_tensors


@dataclass(frozen=True)
class Compiled:
    call: Callable[..., Any]
    seconds: float
    """Wall time of compiling and of the first run."""
    gpu_lock_s: float


class _Card:
    """The card's lock as a compile needs it: taken late, or at the start, and given back at the end."""

    def __init__(self, path: str) -> None:
        self._lock = FileLock(path) if path else None
        self._since: float | None = None
        self.seconds = 0.0

    def take(self) -> None:
        if self._since is None:
            if self._lock is not None:
                self._lock.acquire()
            self._since = time.perf_counter()

    def give(self) -> None:
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
            self._since = None
            if self._lock is not None:
                self._lock.release()


def compiled(
    module: torch.nn.Module, draw: Callable[[], list[Any]], *, mode: str, lock_path: str, hold_above: int
) -> Compiled:
    """``torch.compile(module)`` in ``mode`` (``default`` or ``max-autotune``), with its first run done.

    Tracing, code generation and compiling need no card and take seconds, so in default mode they run without the lock,
    on inputs that hold no values; the lock is taken where the first kernel would launch. Inputs of over ``hold_above``
    bytes are not left lying on a card that others use: then, and for max-autotune, which measures while it compiles,
    the lock is held throughout.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    card = _Card(lock_path)
    started = time.perf_counter()
    inputs: list[Any] = []
    patches = list_mode_options(mode) if mode != "default" else {}

    def backend(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
        made = compile_fx(graph, example_inputs, config_patches=patches)
        card.take()
        return made

    torch._dynamo.reset()
    try:
        card.take()
        inputs = draw()
        if mode == "default" and bytes_of(inputs) <= hold_above:
            inputs = map_tensors(inputs, lambda t: torch.empty_like(t) if t.is_floating_point() else t.clone())
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            card.give()
        call = torch.compile(module, backend=backend)
        with torch.no_grad():
            call(*inputs)
        card.take()  # an empty graph never calls the backend
    finally:
        inputs = []
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        card.give()
    gc.collect()
    gc.freeze()  # the compiler's modules, see roles.create
    return Compiled(call, time.perf_counter() - started, card.seconds)


@contextmanager
def precision(variant: str) -> Iterator[None]:
    """``eager_reduced`` lets matrix products use TF32, as convolutions do by default; everything else runs as it is."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = before or variant == "eager_reduced"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
