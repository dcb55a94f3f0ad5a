"""Which operations of a traced graph matter: dead code is dropped before anything is lowered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

_STATISTICS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
"""Operations that update running statistics without saying so in their schema, and the flag that makes them."""


def storages(value: Any) -> Iterator[int]:
    """Identities of the memory behind a traced value."""
    if isinstance(value, torch.Tensor):
        yield value.untyped_storage()._cdata
    elif isinstance(value, tuple | list):
        for item in value:
            yield from storages(item)


def base_name(target: Any) -> str:
    """``add_`` for aten.add_.Tensor."""
    return target._schema.name.split("::")[-1]


def written(node: Node) -> list[Node]:
    """The arguments that a call overwrites."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    schema = node.target._schema
    names = [arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    bound = arguments(node)
    flag = _STATISTICS.get(base_name(node.target))
    if flag is not None and bound[flag]:
        names += ["running_mean", "running_var"]
    return [bound[name] for name in names if isinstance(bound[name], Node)]


def arguments(node: Node) -> dict[str, Any]:
    """Arguments by schema name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    bound: dict[str, Any] = {}
    for position, arg in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            bound[arg.name] = node.args[position]
        else:
            bound[arg.name] = node.kwargs.get(arg.name, arg.default_value)
    return bound


def live_nodes(graph: Graph) -> set[Node]:
    """Nodes that an output or a state of the module depends on, found from the end: a write counts only where the
    memory is read later, or belongs to an input or a state."""
    live: set[Node] = set()
    memory = {key for node in graph.nodes if node.op == "placeholder" for key in storages(node.meta.get("val"))}
    for node in reversed(graph.nodes):
        if node.op == "output":
            live.add(node)
        elif node.op != "placeholder" and node not in live:
            overwritten = [key for arg in written(node) for key in storages(arg.meta.get("val"))]
            if memory.isdisjoint(overwritten):
                continue
            live.add(node)
        if node in live:
            live.update(node.all_input_nodes)
            for arg in node.all_input_nodes:
                memory.update(storages(arg.meta.get("val")))
    return live
