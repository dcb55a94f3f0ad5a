"""Trees of inputs and outputs as data: a *spec* of plain JSON in which each tensor is its position in a list.

The list of tensors travels separately, see ``transport``. Nothing is ever pickled: the child that runs a candidate may
send anything, so whatever it sends is parsed as data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def encode(tree: Any, found: list[torch.Tensor]) -> Any:
    """The JSON spec of a tree; its tensors are appended to ``found``.

    Raises:
        TypeError: a leaf that is neither a tensor nor a plain value.
    """
    match tree:
        case torch.Tensor():
            found.append(tree)
            return {"tensor": len(found) - 1}
        case None | bool() | int() | str():
            return {"value": tree}
        case float():
            return {"value": tree} if math.isfinite(tree) else {"float": repr(tree)}
        case torch.dtype() | torch.device():
            return {type(tree).__name__: str(tree).removeprefix("torch.")}
        case Mapping():
            return {"dict": [[key, encode(value, found)] for key, value in tree.items()]}
        case tuple():
            return {"tuple": [encode(x, found) for x in tree]}
        case list():
            return {"list": [encode(x, found) for x in tree]}
    raise TypeError(f"a {type(tree).__name__} can't be carried between processes")


def decode(spec: Any, tensors: list[torch.Tensor]) -> Any:
    """The tree back from its spec."""
    ((kind, value),) = spec.items()
    match kind:
        case "tensor":
            return tensors[value]
        case "value":
            return value
        case "float":
            return float(value)
        case "dtype":
            return dtype(value)
        case "device":
            return torch.device(value)
        case "dict":
            return {key: decode(x, tensors) for key, x in value}
        case "tuple":
            return tuple(decode(x, tensors) for x in value)
        case "list":
            return [decode(x, tensors) for x in value]
    raise ValueError(f"unknown kind {kind!r} in a spec")


def dtype(name: str) -> torch.dtype:
    """``float32`` -> ``torch.float32``; anything that is not a dtype's name is refused."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype")
    return found


def meta(tensor: torch.Tensor) -> dict[str, Any]:
    """What can be said of a tensor without reading it."""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "device": tensor.device.type,
        # A subclass can defer its work until somebody reads it.
        "plain": type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided,
    }
