"""The card as the judge uses it: which one, what it can do, and the lock around everything that launches on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from filelock import FileLock

from mtmc.errors import EnvironmentProblem
from mtmc.settings import get_settings, gpu_lock_path, visible_gpu

_locks: dict[str, FileLock] = {}
_locks_guard = threading.Lock()


@dataclass
class Lease:
    """How long the card was held, in seconds; final when the ``with`` block has ended."""

    seconds: float = 0.0
    waited_s: float = 0.0


def resolve(device: str | None = None) -> str:
    """``cuda:N`` or ``cpu`` from an argument, else from ``MTMC_DEVICE``, else the first GPU if there is one."""
    import torch

    wanted = device or get_settings().device
    if wanted == "auto":
        wanted = "cuda:0" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        wanted = "cuda:0"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise EnvironmentProblem(f"The device {wanted} was asked for, but torch sees no GPU; run `mtmc doctor`.")
    return wanted


def is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def lock_file(device: str) -> str:
    """Path of the lock of the physical card behind ``device``, the same in every process of the machine."""
    index = int(device.partition(":")[2] or 0)
    return str(gpu_lock_path(f"cuda:{visible_gpu(index) or index}"))


@contextmanager
def gpu_lock(device: str) -> Iterator[Lease]:
    """Hold the card. Reentrant in a thread, exclusive between threads and processes; the system frees it on a crash.

    On the CPU nothing is locked and nothing is counted.
    """
    lease = Lease()
    if not is_cuda(device):
        yield lease
        return
    path = lock_file(device)
    with _locks_guard:
        lock = _locks.setdefault(path, FileLock(path))
    asked = time.perf_counter()
    with lock:
        held = time.perf_counter()
        lease.waited_s = held - asked
        try:
            yield lease
        finally:
            lease.seconds = time.perf_counter() - held
