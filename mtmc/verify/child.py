"""The candidate's process: the only module that executes candidate code; it answers with tensors and raw times.

Nothing of the reference is ever here: inputs and parameters arrive as values in memory that this process owns.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mtmc.problem.tree import tensors
from mtmc.verify import clock, state, wire
from mtmc.verify.memory import collect
from mtmc.verify.transport import Exporter, Handle, opened, unpacked

EMPTY = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided")


class Poisoned(TorchDispatchMode):
    """Fills what ``torch.empty`` and its like return, so that a result left unwritten can't be an old right one."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch would import dynamo, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.name().partition(".")[0] in EMPTY and isinstance(result, torch.Tensor):
            if result.is_floating_point() or result.is_complex():
                result.fill_(float("nan"))
            elif result.dtype is not torch.bool:
                result.fill_(torch.iinfo(result.dtype).max)
        return result


class Child:
    """Serves requests of the judge about one candidate at a time. Every method takes and returns JSON values."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device = torch.device(device)
        self.folder = folder
        self._loads = 0
        self._slots: dict[str, list[torch.Tensor]] = {}
        self._inputs: dict[str, list[Any]] = {}
        self._module: ModuleType | None = None
        self._model: torch.nn.Module | None = None
        self._outputs: Any = None
        self._exporter = Exporter(device, folder, ipc=True)
        torch.set_grad_enabled(False)
        clock.warm_card(device)

    def configure(self, ipc: bool) -> dict[str, Any]:
        """Choose the transport; answers with this process's card, which must be the reference's."""
        self._exporter = Exporter(str(self.device), self.folder, ipc)
        card = str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else "cpu"
        return {"card": card}

    def load(self, source: str, entry: str) -> None:
        """Import the candidate from a file of its own: Triton reads the source of its kernels back."""
        self.reset()
        self._module = self._imported(source)
        if not callable(getattr(self._module, entry, None)):
            raise NameError(f"the source does not define {entry}")
        self._entry = entry

    def construct(self, arguments: Any, values: list[Handle], seed: int) -> dict[str, Any]:
        """Build the model with the reference's constructor arguments; answers with the tensors of its state."""
        carried = [opened(h, "cpu", self.folder).to(self.device, copy=True) for h in values]
        torch.manual_seed(seed)
        with torch.device(self.device):
            model = getattr(self._module, self._entry)(*wire.decode(arguments, carried))
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"{self._entry}(...) is a {type(model).__name__}, not a torch.nn.Module")
        self._model = model.to(self.device)
        return {
            "saved": {name: wire.meta(t) for name, t in state.saved(model).items()},
            "hidden": {name: wire.meta(t) for name, t in state.hidden(model).items()},
        }

    def allocate(self, key: str, metas: list[dict[str, Any]]) -> list[Handle]:
        """Memory for tensors that the reference's process writes."""
        made = [self._exporter.allocate(meta) for meta in metas]
        self._slots[key] = [tensor for tensor, _ in made]
        return [handle for _, handle in made]

    def allocate_state(self, metas: list[dict[str, Any]]) -> Handle:
        """One buffer for all of a model's state, see ``transport.layout``."""
        buffer, handle = self._exporter.allocate_packed(metas)
        self._slots["state"] = [buffer]
        return handle

    def take_state(self, metas: list[dict[str, Any]], saved: list[str], hidden: list[str]) -> list[str]:
        """Load what arrived; answers with the hidden names that the model lacks."""
        (buffer,) = self._received("state")
        values = dict(zip([*saved, *hidden], unpacked(buffer, metas), strict=True))
        del self._slots["state"]
        self._built.load_state_dict({k: values[k] for k in saved}, strict=True)
        missing = state.assign(self._built, {k: values[k].clone() for k in hidden})
        self._snapshot = state.Snapshot(self._built)
        self._changed: list[str] | None = None
        return missing

    def take_inputs(self, key: str, spec: list[Any]) -> None:
        """Turn what arrived under ``key`` into the arguments of a forward."""
        received = self._received(key)
        self._inputs[key] = [wire.decode(s, received) for s in spec]

    def forward(self, key: str, seed: int) -> dict[str, Any]:
        """One checked run. Answers with outputs, the inputs afterwards and the state afterwards, as handles."""
        inputs = self._inputs[key]
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(seed)
        with Poisoned():
            self._outputs = self._built(*inputs)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None
        found: list[torch.Tensor] = []
        spec = wire.encode(self._outputs, found)
        after = {k: v for k, v in state.everything(self._built).items() if wire.meta(v)["plain"]}
        return {
            "spec": spec,
            "outputs": [self._exporter.export(t) for t in found],
            "inputs": [self._exporter.export(t) for t in tensors(inputs)],
            "state": self._exporter.export_packed(list(after.values())),
            "state_metas": {name: wire.meta(t) for name, t in after.items()},
            "peak": peak,
        }

    def after_forward(self, keep: list[str]) -> None:
        """The other side has dropped its views: restore the state, drop outputs and all inputs but ``keep``."""
        if self._changed is None:
            self._changed = self._snapshot.changed()
        self._snapshot.restore(self._changed)
        self._outputs = None
        self._inputs = {k: v for k, v in self._inputs.items() if k in keep}
        self._slots = {k: v for k, v in self._slots.items() if k in keep}
        self._exporter.clear()
        collect(self.device)

    def start_clock(self, keys: list[str]) -> None:
        """Time the forward over these inputs in turn."""
        names = self._changed or []
        restore = (lambda: self._snapshot.restore(names)) if names else (lambda: None)
        self._clock = clock.Clock(self._built, [self._inputs[k] for k in keys], restore)
        self._clock.warm_up(2)

    def time_block(self, runs: int, warm_up: int) -> list[tuple[float, float, float]]:
        """Raw samples, see ``clock.Clock.block``."""
        self._clock.warm_up(warm_up)
        return self._clock.block(runs)

    def kernel_times(self, source: str, key: str, repeats: int) -> list[list[tuple[str, float]]]:
        """Times between the marks of the marked source, one list a run. It shares the model's state."""
        marked = self._imported(source)
        marks = clock.Marks()
        marked._mark = marks  # type: ignore[attr-defined]
        twin = self._built.__class__.__new__(getattr(marked, self._entry))
        twin.__dict__ = self._built.__dict__
        flush = torch.empty(clock.FLUSH_BYTES // 4, dtype=torch.int32, device=self.device)
        runs = []
        for run in range(repeats + 1):
            self._snapshot.restore(self._changed or [])
            flush.zero_()
            marks.start()
            twin(*self._inputs[key])
            clock.synchronize()
            if run:  # the first one loads
                runs.append(marks.times())
        return runs

    def release(self) -> None:
        """Give the card's memory back; the candidate's module stays loaded."""
        self._model = self._outputs = None
        self._inputs.clear()
        self._slots.clear()
        self.__dict__.pop("_clock", None)
        self.__dict__.pop("_snapshot", None)
        self._exporter.clear()
        collect(self.device)

    def reset(self) -> None:
        """Forget the candidate."""
        self.release()
        self._module = None
        for name in [n for n in sys.modules if n.startswith("candidate_")]:
            del sys.modules[name]
        for path in self.folder.glob(f"candidate_{id(self)}_*.py"):
            path.unlink(missing_ok=True)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    def read_probe(self, key: str) -> float:
        """Sum of what the other side wrote: proves that shared memory works."""
        return float(self._received(key)[0].sum())

    @property
    def _built(self) -> torch.nn.Module:
        assert self._model is not None
        return self._model

    def _received(self, key: str) -> list[torch.Tensor]:
        return [self._exporter.received(t) for t in self._slots[key]]

    def _imported(self, source: str) -> ModuleType:
        self._loads += 1
        name = f"candidate_{id(self)}_{self._loads}"
        path = self.folder / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
