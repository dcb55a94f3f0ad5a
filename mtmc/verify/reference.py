"""The trusted process: runs the user's program, its float64 oracle and its torch.compile baselines, and compares.

It never runs candidate code and never unpickles anything a candidate's process sends: what arrives is JSON and raw
tensor memory. Comparing here rather than in the parent keeps every CUDA context out of the parent, so that no fault on
the card can end a run; the verdict on the numbers is the parent's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mtmc.problem import Problem
from mtmc.problem.tree import bytes_of, map_tensors, tensors
from mtmc.verify import baselines, clock, compare, oracle, state, wire
from mtmc.verify import inputs as input_sets
from mtmc.verify.compare import Comparison
from mtmc.verify.memory import collect
from mtmc.verify.transport import Exporter, Handle, fill, opened, packed, unpacked

PARTS_ABOVE = 48 << 30
"""Bytes of float64 inputs and outputs above which the oracle is tried in parts first."""
STATE = "state:"


@dataclass
class Result:
    """The reference's answer on one input set."""

    inputs: list[Any]
    outputs: Any
    oracle: Any
    """Outputs in float64."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """Updated state after the forward, by name."""
    oracle_state: dict[str, torch.Tensor] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    def bytes(self) -> int:
        return bytes_of([self.inputs, self.outputs, self.oracle])


class Reference:
    """Serves requests of the judge about one problem at a time. Every method takes and returns JSON values."""

    def __init__(self, device: str, folder: Path) -> None:
        self.device = device
        self.folder = folder
        self._problem: Problem | None = None
        self._module: torch.nn.Module | None = None
        self._results: dict[str, Result] = {}
        self._variants: dict[str, Callable[..., Any]] = {}
        self._clocks: dict[str, clock.Clock] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._mutates_inputs = False
        torch.set_grad_enabled(False)
        clock.warm_card(device)

    # -- the problem

    def open(self, problem: dict[str, Any], seed: int, cache_bytes: int) -> dict[str, Any]:
        """Take a problem; answers with what a candidate must be given: constructor arguments, state, inputs."""
        self.reset()
        self._problem, self.seed, self.cache_bytes = Problem(**problem), seed, cache_bytes
        found: list[torch.Tensor] = []
        arguments = wire.encode(list(self._problem.init_inputs(self.device, seed)), found)
        carrier = Exporter("cpu", self.folder, ipc=False)
        return {
            "arguments": arguments,
            "values": [carrier.export(t.cpu()) for t in found],
            "saved": {name: wire.meta(t) for name, t in state.saved(self.module).items()},
            "hidden": {name: wire.meta(t) for name, t in state.hidden(self.module).items()},
        }

    def measure(self, function: str, argument: str) -> Any:
        """Call ``module:name`` with the argument and this process's device, for a layer above this one."""
        module, _, name = function.partition(":")
        value = getattr(importlib.import_module(module), name)(argument, self.device)
        collect(self.device)
        return value

    def card(self) -> dict[str, Any]:
        """Which card this process uses."""
        if not self.device.startswith("cuda"):
            return {"card": "cpu"}
        return {"card": str(torch.cuda.get_device_properties(self.device).uuid)}

    @property
    def problem(self) -> Problem:
        assert self._problem is not None
        return self._problem

    @property
    def module(self) -> torch.nn.Module:
        """The reference module, built when it is needed: it is dropped while others have the card."""
        if self._module is None:
            self._module = self.problem.build_module(self.device, self.seed)
            self._snapshot = state.Snapshot(self._module)
            self._variants = {"eager": self._module, "eager_reduced": self._module}
        return self._module

    # -- input sets

    def prepare(self, name: str) -> dict[str, Any]:
        """Run reference and oracle on a set, unless that is cached; answers with the inputs' shapes."""
        result = self._results.get(name)
        if result is None:
            self._trim()
            result = self._results[name] = self._computed(name)
            self._sizes[name] = bytes_of(result.inputs), bytes_of(result.outputs)
            collect(self.device)  # the candidate needs what the oracle used
        found: list[torch.Tensor] = []
        spec = [wire.encode(x, found) for x in result.inputs]
        return {
            "spec": spec,
            "metas": [wire.meta(t) for t in found],
            "updates": sorted(result.state),
            "flags": result.flags,
        }

    def eager_error(self, name: str) -> float:
        """Largest norm error of the reference itself over its outputs."""
        result = self._results[name]
        pairs = zip(tensors(result.outputs), tensors(result.oracle), strict=True)
        return max((compare.compare(o, e, o).reference.norm for o, e in pairs if o.numel()), default=0.0)

    def push_inputs(self, name: str, slots: list[Handle]) -> None:
        """Write the inputs of a set into the candidate's memory."""
        fill(slots, list(tensors(self._draw(name))), self.device, self.folder)

    def push_state(self, names: list[str], slot: Handle) -> None:
        """Write parameters, buffers and hidden state into the candidate's memory, packed."""
        values = state.everything(self.module)
        fill([slot], [packed([values[name] for name in names], self.device)], self.device, self.folder)

    def compare(self, name: str, reply: dict[str, Any], index_outputs: dict[str, tuple[int, int]]) -> dict[str, Any]:
        """Measure what a candidate's forward left behind. Answers with numbers and differences of structure."""
        result = self._results[name]
        if wrong := self._structure(result, reply):
            return {"structure": wrong}
        rows: dict[str, Any] = {}
        wanted, precise = list(tensors(result.outputs)), list(tensors(result.oracle))
        notes: list[str] = []
        for i, (handle, reference, exact) in enumerate(zip(reply["outputs"], wanted, precise, strict=True)):
            if reference.numel() == 0:
                continue
            if handle["stride"] != list(reference.stride()) and _strides_matter(handle, reference):
                notes.append(f"out{i} has strides {tuple(handle['stride'])}, the reference {tuple(reference.stride())}")
            given = opened(handle, self.device, self.folder).to(reference.device)
            rows[f"out{i}"] = self._compared(given, exact, reference, result, index_outputs.get(str(i))).to_json()
        missing = self._compare_state(result, reply, rows)
        mutated = self._mutated(reply["inputs"], list(tensors(result.inputs)))
        return {"rows": rows, "missing": missing, "mutated": mutated, "strides": notes}

    # -- timing

    def compile(self, mode: str, lock_path: str, hold_above: int, set_name: str) -> dict[str, Any]:
        """Compile the module with torch.compile, holding the card only while something runs on it."""
        made = baselines.compiled(
            self.module, lambda: self._draw(set_name),
            mode=mode, lock_path=lock_path, hold_above=hold_above,
        )  # fmt: skip
        self._snapshot.restore()
        self._variants["compiled" if mode == "default" else "compiled_max"] = made.call
        return {"gpu_lock_s": made.gpu_lock_s, "seconds": made.seconds}

    def variants(self) -> list[str]:
        """Variants that can be timed."""
        self.module  # noqa: B018
        return list(self._variants)

    def start_clock(self, variants: list[str], copies: list[str]) -> None:
        """Get ready to time these variants over copies of the inputs."""
        self.module  # noqa: B018
        drawn = [self._draw(name) for name in copies]
        names = self._updated()
        restore = (lambda: self._snapshot.restore(names)) if names else (lambda: None)
        for variant in variants:
            self._clocks[variant] = clock.Clock(self._variants[variant], drawn, restore)
            with baselines.precision(variant):
                self._clocks[variant].warm_up(2)

    def time_block(self, variant: str, runs: int, warm_up: int) -> list[tuple[float, float, float]]:
        """Raw samples, see ``clock.Clock.block``."""
        with baselines.precision(variant):
            self._clocks[variant].warm_up(warm_up)
            return self._clocks[variant].block(runs)

    # -- memory

    def room(self, name: str) -> dict[str, int]:
        """Free device memory, and the bytes of one set's inputs and outputs."""
        if name not in self._sizes:
            self.prepare(name)
        inputs, outputs = self._sizes[name]
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return {"free": free, "inputs": inputs, "outputs": outputs}

    def release(self, keep_bytes: int, keep_module: bool) -> None:
        """Give memory back: what timing used, results beyond ``keep_bytes``, and a large module if it may go."""
        if self._clocks:
            self._snapshot.restore()  # the last timed run left its updates behind
        self._clocks.clear()
        self._trim(keep=keep_bytes)
        # A compiled variant holds on to the module, which therefore stays.
        if not keep_module and len(self._variants) <= 2 and bytes_of(state.everything(self.module)) > 1 << 30:
            self._module = None
            self._variants.clear()
            self.__dict__.pop("_snapshot", None)
        collect(self.device)

    def reset(self) -> None:
        """Forget the problem and everything compiled for it."""
        self._results.clear()
        self._sizes.clear()
        self._clocks.clear()
        self._variants.clear()
        self._module = None
        self._mutates_inputs = False
        self.__dict__.pop("_snapshot", None)
        self.__dict__.pop("_update_names", None)
        if "torch._dynamo" in sys.modules:  # importing it costs seconds
            torch._dynamo.reset()
        collect(self.device)

    def write_probe(self, slots: list[Handle]) -> None:
        """Write 0, 1, 2, ... where the candidate's process will read it."""
        fill(slots, [torch.arange(257, dtype=torch.float32, device=self.device)], self.device, self.folder)

    # -- inside

    def _draw(self, name: str) -> list[Any]:
        """The inputs of a set: the cached ones where they are, which nobody changes."""
        result = self._results.get(name)
        return result.inputs if result else input_sets.draw(self.problem, name, self.device, self.seed)

    def _reseed(self) -> None:
        torch.manual_seed(self.seed + 7)

    def _computed(self, name: str) -> Result:
        inputs = self._draw(name)
        versions = [t._version for t in tensors(inputs)]
        self._reseed()
        seeded = _generators()
        outputs = self.module(*inputs)
        flags = [] if _same_generators(seeded, _generators()) else ["random"]
        changed = self._snapshot.changed()
        self._update_names = changed
        after = {n: t.detach().clone() for n, t in state.updates(self.module).items() if n in changed}
        self._snapshot.restore(changed)
        if versions != [t._version for t in tensors(inputs)]:
            self._mutates_inputs = True
            flags.append("the reference changes its inputs")
            outputs = map_tensors(outputs, torch.clone)
            inputs = self._draw(name)
        exact, exact_state, note = self._oracle(inputs, outputs, changed)
        return Result(inputs, outputs, exact, after, exact_state, flags + note)

    def _oracle(
        self, inputs: list[Any], outputs: Any, changed: list[str]
    ) -> tuple[Any, dict[str, torch.Tensor], list[str]]:
        drawn = next((t.dtype for t in tensors(inputs) if t.is_floating_point()), torch.float32)
        parts = oracle.wants_parts(inputs, outputs, PARTS_ABOVE)
        for attempt in dict.fromkeys((parts, 1, 4, 16, 64)):
            if attempt > 1 and changed:
                continue
            found = self._attempt(inputs, outputs, changed, attempt, drawn)
            if found is not None:
                return *found, []
            collect(self.device)  # here, where the traceback no longer holds the tensors
        return self._single_precision(inputs)

    def _attempt(
        self, inputs: list[Any], outputs: Any, changed: list[str], parts: int, drawn: torch.dtype
    ) -> tuple[Any, dict[str, torch.Tensor]] | None:
        """The oracle in this many parts; None where it does not fit, or where the leading dim is no batch."""
        try:
            if parts > 1:
                exact = oracle.run_in_parts(self.module, inputs, outputs, self._reseed, parts, drawn)
                return None if exact is None else (exact, {})
            exact, twin = oracle.run(self.module, inputs, self._reseed, drawn)
        except torch.cuda.OutOfMemoryError:
            return None
        values = state.everything(twin)
        return exact, {n: values[n] for n in changed}

    def _single_precision(self, inputs: list[Any]) -> tuple[Any, dict[str, torch.Tensor], list[str]]:
        """Where float64 does not fit: the reference itself with every TF32 switch off."""
        self._reseed()
        allowed = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            outputs = self.module(*inputs)
        finally:
            torch.backends.cudnn.allow_tf32 = allowed
        values = state.updates(self.module)
        changed = {n: values[n].detach().clone() for n in self._updated()}
        self._snapshot.restore()
        return outputs, changed, ["float64 oracle does not fit in memory: compared with float32, TF32 off"]

    def _updated(self) -> list[str]:
        """Names of the state that a forward changes."""
        if "_update_names" not in self.__dict__:
            self.module(*self._draw("seed0"))
            self._update_names = self._snapshot.changed()
            self._snapshot.restore(self._update_names)
        return self._update_names

    def _structure(self, result: Result, reply: dict[str, Any]) -> str:
        """The first difference in number, type, shape, dtype or device of the outputs; empty: none."""
        wanted: list[torch.Tensor] = []
        spec = wire.encode(result.outputs, wanted)
        if len(wanted) != len(reply["outputs"]):
            return f"the reference returns {len(wanted)} tensors, the candidate {len(reply['outputs'])}"
        if _shape_of(spec) != _shape_of(reply["spec"]):
            return "outputs are nested differently, or a value that is not a tensor differs"
        for i, (handle, tensor) in enumerate(zip(reply["outputs"], wanted, strict=True)):
            mine = wire.meta(tensor)
            if not handle["plain"]:
                return f"out{i} is not a plain dense tensor"
            for what in ("shape", "dtype", "device"):
                if handle[what] != mine[what]:
                    return f"out{i} has {what} {_text(handle[what])}, the reference {_text(mine[what])}"
        return ""

    def _compared(
        self, given: torch.Tensor, exact: torch.Tensor, reference: torch.Tensor, result: Result,
        mark: tuple[int, int] | None,
    ) -> Comparison:  # fmt: skip
        comparison = compare.compare(given, exact, reference)
        if reference.is_floating_point() or comparison.candidate.norm == 0:
            return comparison
        if mark is not None:
            return compare.compare_pointed(given, reference, result.inputs[mark[0]], mark[1])
        for values in tensors(result.inputs):
            if (dim := compare.pointed_dim(reference, values)) is not None:
                return compare.compare_pointed(given, reference, values, dim)
        return comparison

    def _compare_state(self, result: Result, reply: dict[str, Any], rows: dict[str, Any]) -> list[str]:
        """Add a row for every updated tensor, and one for each that should not have changed but did.

        Answers with the names that the candidate does not keep in the same form.
        """
        metas = reply["state_metas"]
        parts = unpacked(opened(reply["state"], self.device, self.folder).to(self.device), list(metas.values()))
        given = dict(zip(metas, parts, strict=True))
        wanted = state.everything(self.module) | result.state
        alike = {n for n, t in wanted.items() if n in given and (t.shape, t.dtype) == (given[n].shape, given[n].dtype)}
        kept = [n for n in wanted if n in alike and n not in result.state]
        before, after = (packed([values[n] for n in kept], self.device) for values in (wanted, given))
        if not torch.equal(before, after):
            for name in kept:
                if compare.differing(given[name], wanted[name]):
                    rows[STATE + name] = compare.exact(given[name], wanted[name]).to_json()
        for name, reference in result.state.items():
            if name in alike and reference.numel():
                exact = result.oracle_state.get(name, reference)
                rows[STATE + name] = compare.compare(given[name], exact, reference).to_json()
        return sorted(set(wanted) - alike)

    def _mutated(self, handles: list[Handle], originals: list[torch.Tensor]) -> str:
        if self._mutates_inputs:
            return ""
        for i, (handle, original) in enumerate(zip(handles, originals, strict=True)):
            if original.numel() and compare.differing(
                opened(handle, self.device, self.folder).to(original.device), original
            ):
                return f"input {i} was changed by the forward"
        return ""

    def _trim(self, keep: int | None = None) -> None:
        """Drop results, the oldest first, until what is kept fits in the cache."""
        limit = self.cache_bytes if keep is None else keep
        while self._results and sum(r.bytes() for r in self._results.values()) > limit:
            del self._results[next(iter(self._results))]
        collect(self.device)


def _text(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, list) else str(value)


def _shape_of(spec: Any) -> Any:
    """A spec without the difference between list and tuple."""
    ((kind, value),) = spec.items()
    if kind in ("list", "tuple"):
        return [_shape_of(x) for x in value]
    if kind == "dict":
        return {str(k): _shape_of(x) for k, x in value}
    return (kind, str(value))


def _strides_matter(handle: Handle, reference: torch.Tensor) -> bool:
    """Strides of extents of one say nothing."""
    pairs = zip(handle["stride"], reference.stride(), reference.shape, strict=True)
    return any(a != b for a, b, size in pairs if size > 1)


def _generators() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return states


def _same_generators(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
