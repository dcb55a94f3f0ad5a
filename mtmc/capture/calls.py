"""Library calls of a kernel: the traced call, before it the view calls that make its arguments from whole buffers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from mtmc.capture.library import argument
from mtmc.capture.liveness import base_name
from mtmc.capture.value import Sizes, Value
from mtmc.ir.index import Index
from mtmc.ir.program import Arg, Call, Ref

_AS_EXPAND = frozenset({"expand_as", "broadcast_tensors"})
"""Views that take a second tensor for its shape only: called as ``expand``."""
_AS_VIEW = frozenset({"view_as", "reshape_as"})


class CallBuilder:
    """Turns traced arguments into data; knows the values of all nodes (``env``) and the names that are taken."""

    def __init__(self, env: Mapping[Node, Any], sizes: Sizes, buffers: Container[str]) -> None:
        self._env = env
        self._sizes = sizes
        self._buffers = buffers
        self._names: dict[tuple[object, int | None], str] = {}

    def build(self, target: str, args: Sequence[Any], kwargs: Any, results: tuple[str | None, ...]) -> list[Call]:
        """A call on Values with the view calls that make them."""
        calls: dict[Call, None] = {}
        converted = tuple(self.argument(arg, calls) for arg in args)
        named = tuple((name, self.argument(arg, calls)) for name, arg in kwargs.items())
        return [*calls, Call(target, converted, named, results)]

    def argument(self, value: Any, calls: dict[Call, None], base: tuple[str, str] | None = None) -> Arg:
        """An argument of a Call; view calls it needs are added to ``calls``. ``base`` renames one buffer."""
        if isinstance(value, Value):
            return Ref(self.viewed(value, calls, base))
        if isinstance(value, tuple | list):
            return tuple(self.argument(item, calls, base) for item in value)
        if isinstance(value, Node):
            return self.argument(self._env[value], calls, base)
        if isinstance(value, Ref):
            return value
        if isinstance(value, torch.SymInt):
            value = self._sizes.of(value)
        if isinstance(value, Index):
            return value if value.constant is None else value.constant
        return argument(value)

    def viewed(self, value: Value, calls: dict[Call, None], base: tuple[str, str] | None = None) -> str:
        """The name under which a value can be used, after its view calls."""
        if value.scalar is not None:
            return self._number(value, calls)
        if value.node is None:
            return base[1] if base and value.buffer == base[0] else value.buffer
        node, item = value.node, value.item
        assert isinstance(node.target, torch._ops.OpOverload)
        name = self._name((node, item))
        kind = base_name(node.target)
        alone = item is not None and len(node.meta["val"]) == 1  # a list of one is a reshaped view of its parent
        results: tuple[str | None, ...] = (name,)
        if item is not None and kind not in _AS_EXPAND:
            results = (*[None] * item, name, *[None] * (len(node.meta["val"]) - item - 1))
        if alone or kind in _AS_EXPAND | _AS_VIEW:
            parent = node.args[0]
            first = parent[item or 0] if isinstance(parent, tuple | list) else parent
            target = "aten.expand.default" if kind in _AS_EXPAND else "aten.view.default"
            call = Call(
                target, (self.argument(first, calls, base), self.argument(value.shape, calls)), (), results, True
            )
        else:
            args = tuple(self.argument(arg, calls, base) for arg in node.args)
            kwargs = tuple((n, self.argument(arg, calls, base)) for n, arg in node.kwargs.items())
            call = Call(str(node.target), args, kwargs, results, True)
        calls[call] = None
        return name

    def _number(self, value: Value, calls: dict[Call, None]) -> str:
        """A known number as a tensor: made on the spot, as the user's own forward does."""
        name = self._name((value.storage, None))
        dtype = (("dtype", argument(value.fake.dtype)),)
        calls[Call("aten.scalar_tensor.default", (value.scalar,), dtype, (name,))] = None
        return name

    def _name(self, key: tuple[object, int | None]) -> str:
        """The name of an inner value, the same in every kernel that makes it."""
        number = len(self._names)
        while key not in self._names:
            if f"v{number}" not in self._buffers and f"v{number}" not in self._names.values():
                self._names[key] = f"v{number}"
            number += 1
        return self._names[key]
