"""Device memory shared between two processes, through the driver's own calls.

``torch``'s sharing hands the memory to a reader count that outlives both sides: what was exported once was never
given back. Here the order of requests settles who frees when: the owner keeps its tensor, the reader closes its
mapping when the tensor over it dies (CUDA driver API, unified addressing and IPC).
"""

from __future__ import annotations

import base64
import ctypes
import functools
from typing import Any

import torch

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    """``CUipcMemHandle``: passed by value."""

    _fields_ = [("reserved", ctypes.c_char * _HANDLE_BYTES)]


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed with CUDA driver error {status}")


def export(tensor: torch.Tensor) -> dict[str, Any]:
    """What another process needs to map this tensor's memory. The owner keeps the tensor alive meanwhile."""
    address = tensor.data_ptr()
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return {"handle": base64.b64encode(bytes(handle)).decode(), "offset": address - base.value}


class _Mapping:
    """Bytes of the owner's allocation as torch takes them in: ``__cuda_array_interface__``."""

    def __init__(self, handle: str, offset: int, size: int) -> None:
        self._base = ctypes.c_uint64()
        raw = _Handle.from_buffer_copy(base64.b64decode(handle))
        _call("cuIpcOpenMemHandle_v2", ctypes.byref(self._base), raw, ctypes.c_uint(_LAZY_PEER_ACCESS))
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._base.value + offset, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if self._base.value:
            torch.cuda.synchronize()  # work on the memory may still be queued
            _driver().cuIpcCloseMemHandle(self._base)


def mapped(
    shared: dict[str, Any], shape: tuple[int, ...], stride: tuple[int, ...], kind: torch.dtype, device: str
) -> torch.Tensor:
    """The owner's tensor in this process, without a copy; the mapping ends with the tensor."""
    torch.cuda.init()
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    mapping = _Mapping(shared["handle"], shared["offset"], extent * kind.itemsize)
    return torch.as_tensor(mapping, device=device).view(kind).as_strided(shape, stride)
