"""Nested inputs and outputs: lists, tuples and dicts with tensors at the leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def map_tensors(tree: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """The same tree with ``function`` applied to every tensor."""
    match tree:
        case torch.Tensor():
            return function(tree)
        case Mapping():
            return {key: map_tensors(value, function) for key, value in tree.items()}
        case tuple():
            return tuple(map_tensors(x, function) for x in tree)
        case list():
            return [map_tensors(x, function) for x in tree]
    return tree


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Every tensor of the tree, depth first, in order."""
    match tree:
        case torch.Tensor():
            yield tree
        case Mapping():
            for value in tree.values():
                yield from tensors(value)
        case tuple() | list():
            for value in tree:
                yield from tensors(value)


def to_device(tree: Any, device: str) -> Any:
    """Every tensor moved to ``device``; those already there are kept as they are."""
    return map_tensors(tree, lambda t: t.to(device))


def bytes_of(tree: Any) -> int:
    """Bytes of all tensors' elements (an expanded tensor counts in full)."""
    return sum(t.numel() * t.element_size() for t in tensors(tree))
