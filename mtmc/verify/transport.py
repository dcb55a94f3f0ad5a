"""How tensors get from one child to the other: shared device memory (CUDA IPC), or files in shared host memory.

Memory is always owned and exported by the process that runs the candidate, and opened by the reference process, which
writes inputs and parameters into it and reads results out of it. So the candidate's process never maps memory of the
trusted side, and nothing it does can change what it is compared with.
"""

from __future__ import annotations

import base64
import gc
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mtmc.verify import wire

Handle = dict[str, Any]

_CUDA_FIELDS = ("device", "handle", "bytes", "offset", "ref_handle", "ref_offset", "event", "event_sync")


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
            fields = dict(zip(_CUDA_FIELDS, tensor.untyped_storage()._share_cuda_(), strict=True))
            self._kept.append(tensor)
            # The order of requests settles who frees when. torch's own count of readers would keep memory for ever
            # that the other side never opens, and its event needs more of the driver than a synchronise does.
            torch.UntypedStorage._release_ipc_counter(fields["ref_handle"], fields["ref_offset"], device=self.device)
            fields["event_sync"] = False
            packed = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in fields.items()}
            return {"cuda": packed, "storage_offset": tensor.storage_offset(), **described}
        dense = tensor.contiguous()
        path, copy = self._file(tuple(dense.shape), dense.stride(), dense.dtype)
        _copy(copy, dense)
        return {"file": path, **described, "file_stride": list(dense.stride())}

    def clear(self) -> None:
        """Forget everything exported; the other side must have dropped it first."""
        self._kept.clear()
        for path in self.folder.glob(f"{os.getpid()}-*.bin"):
            path.unlink(missing_ok=True)
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.ipc_collect()

    def _file(self, shape: tuple[int, ...], stride: tuple[int, ...], kind: torch.dtype) -> tuple[str, torch.Tensor]:
        self._count += 1
        path = self.folder / f"{os.getpid()}-{self._count}.bin"
        tensor = _mapped(path, shape, stride, kind, create=True)
        return str(path), tensor


def opened(handle: Handle, device: str, folder: Path) -> torch.Tensor:
    """The tensor behind a handle: shared memory where the transport shares, without a copy."""
    shape, kind = tuple(handle["shape"]), wire.dtype(handle["dtype"])
    if "cuda" in handle:
        packed = {k: base64.b64decode(v) if isinstance(v, str) else v for k, v in handle["cuda"].items()}
        # _new_shared_cuda wants this process's index of the same card, and initialised CUDA.
        torch.cuda.init()
        packed["device"] = torch.device(device).index or 0
        storage = torch.UntypedStorage._new_shared_cuda(*(packed[name] for name in _CUDA_FIELDS))
        tensor = torch.empty(0, dtype=kind, device=storage.device)
        return tensor.set_(storage, handle["storage_offset"], shape, tuple(handle["stride"]))
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


def elements(meta: Mapping[str, Any]) -> int:
    return math.prod(meta["shape"])
