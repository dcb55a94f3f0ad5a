"""The state of a module: what a forward may change, how to save, restore, carry and compare it.

Three kinds, one namespace: entries of ``state_dict`` under their own names; buffers that are not saved; and tensors
kept as plain attributes (a hidden state that a forward assigns), the last two as ``path.to.module!name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn


def saved(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors of the ``state_dict``, not copied."""
    return {k: v for k, v in module.state_dict(keep_vars=True).items() if isinstance(v, torch.Tensor)}


def hidden(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that the ``state_dict`` does not hold, not copied."""
    return {f"{path}!{name}": tensor for path, _, name, tensor in _hidden(module)}


def updates(module: nn.Module) -> dict[str, torch.Tensor]:
    """Whatever a forward may update: buffers and plain tensor attributes; parameters are not among them."""
    parameters = {id(p) for p in module.parameters()}
    return {k: v for k, v in (saved(module) | hidden(module)).items() if id(v) not in parameters}


def everything(module: nn.Module) -> dict[str, torch.Tensor]:
    return saved(module) | hidden(module)


class Snapshot:
    """Copies of the updatable state, to be put back before every trial."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copies = {name: tensor.detach().clone() for name, tensor in updates(module).items()}

    def changed(self) -> list[str]:
        """Names whose value or object is no longer the saved one."""
        now = updates(self._module)
        return [n for n, old in self._copies.items() if n not in now or not same(now[n], old)]

    def restore(self, names: list[str] | None = None) -> None:
        """Put the saved values back (all, or ``names``); buffers keep their identity where their shape allows."""
        now = updates(self._module)
        targets, sources = [], []
        for name in self._copies if names is None else names:
            saved_value = self._copies[name]
            current = now.get(name)
            if current is not None and current.shape == saved_value.shape and current.dtype == saved_value.dtype:
                targets.append(current)
                sources.append(saved_value)
            else:
                assign(self._module, {name: saved_value.clone()})
        if targets:  # one launch for a network's hundreds of statistics
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


def assign(module: nn.Module, values: Mapping[str, torch.Tensor]) -> list[str]:
    """Set hidden state and buffers by name; returns the names that the module does not have."""
    missing = []
    modules = dict(module.named_modules())
    for name, value in values.items():
        path, _, attribute = name.rpartition("!") if "!" in name else name.rpartition(".")
        owner = modules.get(path)
        if owner is None or not (
            attribute in owner._buffers or isinstance(owner.__dict__.get(attribute), torch.Tensor)
        ):
            missing.append(name)
        else:
            setattr(owner, attribute, value)
    return missing


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and values, NaN equal to NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(equal_mask(a, b).all())


def equal_mask(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same value, NaN equal to NaN."""
    equal = a == b
    return equal | ((a != a) & (b != b)) if a.is_floating_point() or a.is_complex() else equal


def _hidden(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    for path, part in module.named_modules():
        for name in sorted(part._non_persistent_buffers_set):
            if (tensor := part._buffers.get(name)) is not None:
                yield path, part, name, tensor
        for name, value in part.__dict__.items():
            if isinstance(value, torch.Tensor):
                yield path, part, name, value
