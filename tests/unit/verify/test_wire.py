"""Messages and handles: data in, the same data out, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtmc.verify import transport, wire

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
TREES = st.recursive(
    LEAVES, lambda t: st.lists(t) | st.lists(t).map(tuple) | st.dictionaries(st.text(), t), max_leaves=12
)


@given(TREES)
def test_trees_survive_json(tree: object) -> None:
    assert wire.decode(json.loads(json.dumps(wire.encode(tree, []))), []) == tree


def test_tensors_dtypes_and_odd_floats() -> None:
    x, found = torch.rand(3), []
    tree = [x, {"a": (x, math.nan)}, torch.float16, torch.device("cpu")]
    spec = json.loads(json.dumps(wire.encode(tree, found)))
    back = wire.decode(spec, found)
    assert back[0] is x and back[1]["a"][0] is x and math.isnan(back[1]["a"][1])
    assert back[2] is torch.float16 and back[3] == torch.device("cpu")


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0])
def test_what_can_not_be_carried_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="can't be carried"):
        wire.encode([value], [])


@pytest.mark.parametrize("name", ["load", "os", "Tensor", "nothing"])
def test_a_dtype_is_a_dtype(name: str) -> None:
    with pytest.raises(ValueError, match="not a dtype"):
        wire.dtype(name)


STRIDED = [
    torch.arange(24.0).view(4, 6),
    torch.arange(24.0).view(4, 6).t(),
    torch.arange(24).view(2, 3, 4)[:, ::2],
    torch.rand(3, 1).expand(3, 5),
    torch.tensor(2.5),
    torch.empty(0, 3),
    torch.rand(7).to(torch.bfloat16),
    torch.tensor([True, False]),
]


@pytest.mark.parametrize("tensor", STRIDED, ids=lambda t: f"{t.dtype}{tuple(t.shape)}{t.stride()}")
def test_a_tensor_crosses_both_ways(tensor: torch.Tensor, tmp_path: Path) -> None:
    owner = transport.Exporter("cpu", tmp_path, ipc=False)
    handle = json.loads(json.dumps(owner.export(tensor)))
    assert torch.equal(transport.opened(handle, "cpu", tmp_path), tensor)
    slot, handle = owner.allocate(wire.meta(tensor))
    transport.fill([json.loads(json.dumps(handle))], [tensor], "cpu", tmp_path)
    received = owner.received(slot)
    assert torch.equal(received, tensor) and received.stride() == tensor.stride()
    owner.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_handle_can_not_point_elsewhere(tmp_path: Path) -> None:
    handle = transport.Exporter("cpu", tmp_path, ipc=False).export(torch.rand(4))
    for path in ("/etc/passwd", str(tmp_path / ".." / "x.bin")):
        with pytest.raises(ValueError, match="outside"):
            transport.opened(handle | {"file": path}, "cpu", tmp_path)
    with pytest.raises(ValueError, match="smaller"):
        transport.opened(handle | {"shape": [1 << 20], "stride": [1], "file_stride": [1]}, "cpu", tmp_path)


def test_a_subclass_is_never_read(tmp_path: Path) -> None:
    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            assert "contiguous" not in str(func), "the lazy tensor was read"
            return super().__torch_function__(func, types, args, kwargs)

    handle = transport.Exporter("cpu", tmp_path, ipc=False).export(torch.rand(3).as_subclass(Lazy))
    assert not handle["plain"] and "file" not in handle
