"""How tensors get from one child to the other: shared device memory (CUDA IPC), or files in shared host memory.

Memory is always owned and exported by the process that runs the candidate, and opened by the reference process, which
writes inputs and parameters into it and reads results out of it. So the candidate's process never maps memory of the
trusted side, and nothing it does can change what it is compared with.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mtmc.verify import ipc, wire

Handle = dict[str, Any]

ALIGNMENT = 512
"""Bytes to which tensors in a packed buffer are aligned, as torch aligns its allocations."""


class Exporter:
    """The owner's side. Keeps what it exported alive until ``clear``."""

    def __init__(self, device: str, folder: Path, ipc: bool) -> None:
        self.device = torch.device(device)
        self.folder = folder
        self.ipc = ipc and self.device.type == "cuda"
        self._kept: list[Any] = []
        self._count = 0

    def allocate(self, meta: Mapping[str, Any]) -> tuple[torch.Tensor, Handle]:
        """An uninitialised tensor of this dtype, shape and stride, and the handle by which the other side fills it."""
        shape, stride = tuple(meta["shape"]), tuple(meta["stride"])
        kind = wire.dtype(meta["dtype"])
        if self.ipc:
            tensor = torch.empty_strided(shape, stride, dtype=kind, device=self.device)
            return tensor, self.export(tensor)
        path, tensor = self._file(shape, stride, kind)
        return tensor, {"file": path, **wire.meta(tensor)}

    def received(self, tensor: torch.Tensor) -> torch.Tensor:
        """The filled tensor in memory of its own, on the device."""
        if self.ipc:
            return tensor
        own = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        return _copy(own, tensor)

    def export(self, tensor: torch.Tensor) -> Handle:
        """A handle by which the other side reads this tensor."""
        tensor = tensor.detach()
        described = wire.meta(tensor)
        if tensor.numel() == 0 or not described["plain"]:
            return described  # a subclass is never read: reading is what it waits for
        if self.ipc and tensor.device.type == "cuda":
            self._kept.append(tensor)
            return {"cuda": ipc.export(tensor), **described}
        dense = tensor.contiguous()
        path, copy = self._file(tuple(dense.shape), dense.stride(), dense.dtype)
        _copy(copy, dense)
        return {"file": path, **described, "file_stride": list(dense.stride())}

    def allocate_packed(self, metas: Sequence[Mapping[str, Any]]) -> tuple[torch.Tensor, Handle]:
        """One buffer for many tensors, laid out by ``layout``: a network's state is a thousand of them."""
        size = layout(metas)[-1]
        return self.allocate({"dtype": "uint8", "shape": [size], "stride": [1]})

    def export_packed(self, sources: Sequence[torch.Tensor]) -> Handle:
        """Copies of many tensors in one buffer."""
        return self.export(packed(sources, self.device))

    def clear(self) -> None:
        """Forget everything exported; the other side must have dropped it first."""
        self._kept.clear()
        for path in self.folder.glob(f"{os.getpid()}-*.bin"):
            path.unlink(missing_ok=True)

    def _file(self, shape: tuple[int, ...], stride: tuple[int, ...], kind: torch.dtype) -> tuple[str, torch.Tensor]:
        self._count += 1
        path = self.folder / f"{os.getpid()}-{self._count}.bin"
        tensor = _mapped(path, shape, stride, kind, create=True)
        return str(path), tensor


def layout(metas: Sequence[Mapping[str, Any]]) -> list[int]:
    """Byte offset of each tensor in a packed buffer, and the buffer's size."""
    offsets = [0]
    for meta in metas:
        size = math.prod(meta["shape"]) * wire.dtype(meta["dtype"]).itemsize
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets


def unpacked(buffer: torch.Tensor, metas: Sequence[Mapping[str, Any]]) -> list[torch.Tensor]:
    """The tensors of a packed buffer, contiguous, without a copy."""
    parts = []
    for meta, start in zip(metas, layout(metas), strict=False):
        kind = wire.dtype(meta["dtype"])
        size = math.prod(meta["shape"]) * kind.itemsize
        parts.append(buffer[start : start + size].view(kind).view(meta["shape"]))
    return parts


def packed(sources: Sequence[torch.Tensor], device: torch.device | str) -> torch.Tensor:
    """A packed buffer with the values of ``sources``; the gaps are zero, so that equal values are equal bytes."""
    metas = [wire.meta(t) for t in sources]
    buffer = torch.zeros(layout(metas)[-1], dtype=torch.uint8, device=device)
    for part, source in zip(unpacked(buffer, metas), sources, strict=True):
        part.copy_(source.detach())
    return buffer


def opened(handle: Handle, device: str, folder: Path) -> torch.Tensor:
    """The tensor behind a handle: shared memory where the transport shares, without a copy."""
    shape, kind = tuple(handle["shape"]), wire.dtype(handle["dtype"])
    if "cuda" in handle:
        return ipc.mapped(handle["cuda"], shape, tuple(handle["stride"]), kind, device)
    if "file" in handle:
        path = Path(handle["file"])
        if path.parent != folder:
            raise ValueError("a handle points outside the judge's folder")
        return _mapped(
            path,
            shape,
            tuple(handle["file_stride"] if "file_stride" in handle else handle["stride"]),
            kind,
            create=False,
        )
    return torch.empty(shape, dtype=kind, device=device)


def fill(slots: Sequence[Handle], sources: Sequence[torch.Tensor], device: str, folder: Path) -> None:
    """Write ``sources`` into the memory behind ``slots``."""
    for handle, source in zip(slots, sources, strict=True):
        if source.numel():
            _copy(opened(handle, device, folder), source)
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _copy(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Element by element; an expanded target (stride 0) is one element a group, so its one element is written."""
    pairs = zip(target.shape, target.stride(), strict=True)
    index = tuple(0 if stride == 0 and size > 1 else slice(None) for size, stride in pairs)
    target[index].copy_(source.detach()[index])
    return target


def _mapped(
    path: Path, shape: tuple[int, ...], stride: tuple[int, ...], kind: torch.dtype, create: bool
) -> torch.Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=kind)
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    size = extent * kind.itemsize
    if create:
        with path.open("wb") as file:
            file.truncate(size)
    elif path.stat().st_size < size:
        raise ValueError("a shared file is smaller than its handle says")
    raw = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
    return raw.view(kind).as_strided(shape, stride)


def shared_folder(prefix: str = "mtmc-") -> Path:
    """A fresh private folder in shared memory, or in the temporary folder where that is too small."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK):
        stat = os.statvfs(memory)
        if stat.f_bavail * stat.f_frsize > 1 << 30:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=memory))
    return Path(tempfile.mkdtemp(prefix=prefix))
