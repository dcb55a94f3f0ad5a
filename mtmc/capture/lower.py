"""A traced graph as a Program: in-place operations made functional, views folded into index maps, every operation a
kernel that starts as a Library call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node

from mtmc.capture.aten import RULES, Args, NotLowered, Piece, Site
from mtmc.capture.aten.random import draws, is_identity
from mtmc.capture.calls import CallBuilder
from mtmc.capture.export import Exported
from mtmc.capture.liveness import arguments, base_name, live_nodes, storages, written
from mtmc.capture.rnn import ATEN
from mtmc.capture.signature import check_inputs, literal, output_tree
from mtmc.capture.sources import user_frame
from mtmc.capture.value import Sizes, Storage, Value, dtype_of_torch
from mtmc.errors import CaptureError
from mtmc.ir.index import Index, contiguous_strides
from mtmc.ir.program import Buffer, Call, Kernel, Opaque, Program, Ref, Role, Stages, Update
from mtmc.ir.types import DType
from mtmc.log import get_logger

log = get_logger("capture")

_NOTHING = frozenset(
    {"_assert_tensor_metadata", "sym_constrain_range", "sym_constrain_range_for_size", "_assert_scalar"}
)
"""Calls that compute nothing."""
_RENAMING = frozenset({"detach_", "requires_grad_"})
_LARGEST_CONSTANT = 4096
"""Elements of a constant that may stand as text in the generated file."""


@dataclass
class _Memory:
    """Where a traced storage lives now; ``shift`` is its first element within the buffer."""

    storage: Storage
    shift: Index


class Lowering:
    """One pass over a traced graph. Use :func:`lower`."""

    def __init__(self, exported: Exported, sizes: Sizes) -> None:
        self.exported = exported
        self.sizes = sizes
        self.buffers: dict[str, Buffer] = {}
        self.kernels: list[Kernel] = []
        self.env: dict[Node, Any] = {}
        self.memory: dict[int, _Memory] = {}
        self.calls = CallBuilder(self.env, sizes, self.buffers)
        self.fixed: dict[Storage, str] = {}
        self.live = live_nodes(exported.program.graph)
        self.line: int | None = None
        self._temps = 0

    # -- what a site needs --------------------------------------------------------------------------------
    def buffer_dtype(self, name: str) -> DType:
        return self.buffers[name].dtype

    def new_temp(self, dtype: DType, shape: tuple[Index, ...], strides: tuple[Index, ...] | None = None) -> Buffer:
        while f"t{self._temps}" in self.buffers:
            self._temps += 1
        buffer = Buffer(f"t{self._temps}", dtype, shape, contiguous_strides(shape) if strides is None else strides)
        self.buffers[buffer.name] = buffer
        return buffer

    def size(self, size: Any) -> Index:
        return self.sizes.of(size)

    def call(self, target: str, args: Sequence[Any], kwargs: Any, results: tuple[str | None, ...]) -> list[Call]:
        """A call on Values with the view calls that make them."""
        return self.calls.build(target, args, kwargs, results)

    # -- the pass -----------------------------------------------------------------------------------------
    def run(self) -> Program:
        program = self.exported.program
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        position = 0
        states: list[tuple[Buffer, Storage]] = []
        fixed: list[tuple[int, Any]] = []
        check_inputs(program)
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                if isinstance(spec.arg, ConstantArgument):
                    fixed.append((position, spec.arg.value))
                else:
                    _, storage = self._declare(node, node.name, Role.INPUT, str(position))
                    self.fixed[storage] = f"its input '{node.name}'"
                position += 1
            elif spec.kind is InputKind.PARAMETER:
                self._declare(node, str(spec.target), Role.PARAMETER, str(spec.target))
            elif spec.kind is InputKind.BUFFER:
                states.append(self._declare(node, str(spec.target), Role.STATE, str(spec.target)))
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                self._declare_constant(node, str(spec.target))
            else:
                raise CaptureError(
                    f"forward takes {spec.target or node.name}, which is neither a tensor nor a plain value"
                )
        for node in program.graph.nodes:
            if node.op == "call_function" and node in self.live:
                file, self.line = user_frame(node, self.exported.file)
                try:
                    self._visit(node)
                except CaptureError as error:
                    if error.line is not None or self.line is None:
                        raise
                    raise CaptureError(error.message, file=file, line=self.line) from error
        outputs = self._outputs(program)
        updates = tuple(Update(b.name, s.buffer.name) for b, s in states if s.buffer.name != b.name)
        return replace(self._finished(outputs, updates), fixed_arguments=tuple(fixed))

    def _finished(self, outputs: tuple[str, ...], updates: tuple[Update, ...]) -> Program:
        kernels = tuple(replace(kernel, id=f"k{i}") for i, kernel in enumerate(self.kernels))
        draft = Program(
            tuple(self.buffers.values()), kernels, outputs, updates, output_tree(self.exported.program)
        ).pruned()
        mentioned = {*outputs, *(name for u in updates for name in (u.state, u.value))}
        for kernel in kernels:
            mentioned.update(kernel.reads)
            for call in kernel.calls:
                mentioned.update(call.refs())
        kept = tuple(b for b in draft.buffers if b.role in (Role.TEMP, Role.INPUT) or b.name in mentioned)
        return replace(draft, buffers=kept)

    # -- placeholders and outputs ---------------------------------------------------------------------------
    def _declare(self, node: Node, name: str, role: Role, source: str) -> tuple[Buffer, Storage]:
        fake = node.meta["val"]
        while name in self.buffers:
            name += "_"
        shape, strides = tuple(map(self.size, fake.shape)), tuple(map(self.size, fake.stride()))
        buffer = Buffer(name, dtype_of_torch(fake.dtype), shape, strides, role, source)
        self.buffers[name] = buffer
        storage = Storage(buffer)
        # an input may be a window onto something larger: its own first element is where it starts
        self.memory[next(storages(fake))] = _Memory(storage, self.size(fake.storage_offset()) * -1)
        self.env[node] = Value(storage, fake, shape, strides, Index())
        return buffer, storage

    def _declare_constant(self, node: Node, target: str) -> None:
        tensor = self.exported.program.constants[target]
        source = target
        scalar: Any = None
        lifted = target.split(".")[-1].startswith("lifted_tensor_")
        if lifted:
            if not isinstance(tensor, torch.Tensor) or tensor.numel() > _LARGEST_CONSTANT:
                raise CaptureError("forward makes a large constant tensor; register it as a buffer in the constructor")
            source = f"torch.tensor({literal(tensor.tolist())}, dtype={tensor.dtype})"
            scalar = tensor.item() if tensor.dim() == 0 else None
        _, storage = self._declare(node, target, Role.CONSTANT, source)
        if not lifted:
            self.fixed[storage] = f"the tensor '{target}', which is not a registered buffer"
        if scalar is not None:
            self.env[node] = replace(self.env[node], scalar=scalar)

    def _outputs(self, program: torch.export.ExportedProgram) -> tuple[str, ...]:
        (output,) = (node for node in program.graph.nodes if node.op == "output")
        names: list[str] = []
        for result, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
            if str(spec.kind.name) != "USER_OUTPUT":
                continue
            value = self._value_of(result) if isinstance(result, Node) else result
            if not isinstance(value, Value):
                raise CaptureError(f"forward returns {value!r}; only tensors can be returned", file=self.exported.file)
            names.append(value.buffer if value.whole else self._returned_view(value))
        return tuple(names)

    def _returned_view(self, value: Value) -> str:
        calls: dict[Call, None] = {}
        name = self.calls.viewed(value, calls)
        self.buffers[name] = Buffer(name, value.dtype, value.shape, value.strides)
        last = list(calls)[-1]
        self._append(Kernel("", Opaque(("view",)), last.target.split(".")[1], tuple(calls), exports=(name,)))
        return name

    # -- one node -------------------------------------------------------------------------------------------
    def _value_of(self, node: Node) -> Any:
        return self.env[node]

    def _bound(self, arg: Any) -> Any:
        """An FX argument with nodes replaced by their values, lists by tuples, symbols by indices."""
        if isinstance(arg, Node):
            return self._value_of(arg)
        if isinstance(arg, tuple | list):
            return tuple(self._bound(item) for item in arg)
        return self.size(arg) if isinstance(arg, torch.SymInt) else arg

    def _visit(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            self.env[node] = self._value_of(node.args[0])[node.args[1]]  # type: ignore[index, arg-type]
            return
        result = node.meta.get("val")
        if isinstance(result, torch.SymInt | int) and not isinstance(result, bool):
            self.env[node] = self.size(result)
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise CaptureError(f"'{target}' (control flow or a context manager inside forward) is not supported")
        name = base_name(target)
        if name in _NOTHING:
            return
        if result is None or isinstance(result, torch.SymFloat | torch.SymBool | float | bool):
            raise CaptureError(f"'{name}' turns tensor data into a Python number")
        args = Args(**{key: self._bound(arg) for key, arg in arguments(node).items()})
        if name in _RENAMING:
            self.env[node] = args.self
        elif overwritten := [self._value_of(arg) for arg in written(node)]:
            self._mutate(node, name, args, overwritten)
        elif name == "lift_fresh_copy" or is_identity(name, args):
            self._copied(node, args.self if name == "lift_fresh_copy" else args.input, result)
        elif self._aliases(node, result):
            self._view(node, args, result)
        else:
            self._compute(node, target, name, args, result)

    def _copied(self, node: Node, source: Value, fake: torch.Tensor) -> None:
        """Memory of its own with the same value: nothing is copied, as buffers are never overwritten."""
        if not source.whole and tuple(map(self.size, fake.stride())) != source.strides:
            self._compute(node, torch.ops.aten.clone.default, "clone", Args(self=source, memory_format=None), fake)
            return
        storage = Storage(source.storage.buffer)
        shift = source.offset - self.size(fake.storage_offset())
        self.memory[next(storages(fake))] = _Memory(storage, shift)
        self.env[node] = replace(source, storage=storage)

    def _aliases(self, node: Node, result: Any) -> bool:
        keys = list(storages(result))
        known = {key for arg in node.all_input_nodes for key in storages(arg.meta.get("val"))}
        return bool(keys) and all(key in self.memory and key in known for key in keys)

    def _view(self, node: Node, args: Args, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            first = next((v for v in vars(args).values() if isinstance(v, Value)), None)
            self.env[node] = self._as_view(node, None, result, first)
            return
        self.env[node] = tuple(self._as_view(node, i, item, None) for i, item in enumerate(result))

    def _as_view(self, node: Node, item: int | None, fake: torch.Tensor, parent: Value | None) -> Value:
        memory = self.memory[next(storages(fake))]
        shape, strides = tuple(map(self.size, fake.shape)), tuple(map(self.size, fake.stride()))
        offset = self.size(fake.storage_offset()) + memory.shift
        if dtype_of_torch(fake.dtype) is not memory.storage.buffer.dtype:
            raise CaptureError("a view with another element type is not supported")
        if parent is not None and (parent.shape, parent.strides, parent.offset) == (shape, strides, offset):
            return parent
        return Value(memory.storage, fake, shape, strides, offset, node, item)

    # -- writes ---------------------------------------------------------------------------------------------
    def _mutate(self, node: Node, name: str, args: Args, overwritten: list[Value]) -> None:
        if name in ("batch_norm", "instance_norm"):
            self._running_statistics(node, name, args)
            return
        value = overwritten[0]
        if value.storage in self.fixed:
            raise CaptureError(f"forward overwrites {self.fixed[value.storage]} ({name}); let it work on a clone")
        if len(overwritten) > 1:
            raise CaptureError(f"'{name}' overwrites several tensors")
        before = value.storage.buffer
        if name == "copy_" and isinstance(args.src, Value) and _same_window(value, args.src):
            log.debug("line %s copies a tensor onto itself", self.line)
        elif name == "copy_" and value.whole and _same_layout(value, args.src):
            value.storage.buffer = args.src.storage.buffer
        elif value.whole and (functional := _functional(node, name, args)) is not None:
            self._compute(node, functional, name.rstrip("_"), args, value.fake)
            made = self.env[node]
            value.storage.buffer = made.storage.buffer
        else:
            value.storage.buffer = self._write_part(node, value, before)
        self.env[node] = value

    def _write_part(self, node: Node, value: Value, before: Buffer) -> Buffer:
        """A copy of the buffer in which the call then overwrites a window."""
        after = self.new_temp(before.dtype, before.shape, before.strides)
        calls: dict[Call, None] = {Call("aten.clone.default", (Ref(before.name),), (), (after.name,)): None}
        base = (before.name, after.name)
        args = tuple(self.calls.argument(arg, calls, base) for arg in node.args)
        kwargs = tuple((key, self.calls.argument(arg, calls, base)) for key, arg in node.kwargs.items())
        calls[Call(str(node.target), args, kwargs, (None,))] = None
        op = base_name(node.target).rstrip("_")
        effects = ("random",) if torch.Tag.nondeterministic_seeded in node.target.tags else ()  # type: ignore[union-attr]
        self._append(Kernel("", Opaque(effects), op, tuple(calls), exports=(after.name,)))
        return after

    def _running_statistics(self, node: Node, name: str, args: Args) -> None:
        """Batch norm in training: the statistics are results; the call updates copies of them."""
        fakes = (node.meta["val"], args.running_mean.fake, args.running_var.fake)
        if not (args.running_mean.whole and args.running_var.whole):
            raise CaptureError(f"{name} keeps its running statistics in a view of something else")
        site = Site(self, fakes, (node in self.live, True, True))
        names = [site.out(i) for i in range(3)]
        calls = [Call("aten.clone.default", (Ref(value.buffer),), (), (new,))
                 for value, new in ((args.running_mean, names[1]), (args.running_var, names[2]))]  # fmt: skip
        more: dict[Call, None] = {}
        renamed = {"running_mean": Ref(names[1]), "running_var": Ref(names[2])}
        inputs = tuple(
            renamed[key] if key in renamed else self.calls.argument(arg, more) for key, arg in vars(args).items()
        )
        calls += [*more, Call(str(node.target), inputs, (), (names[0],))]
        self._emit(site, name, args, tuple(calls), ())
        for value, new in ((args.running_mean, names[1]), (args.running_var, names[2])):
            value.storage.buffer = self.buffers[new]
        self.env[node] = self._result(site, 0)

    # -- computations -----------------------------------------------------------------------------------------
    def _compute(self, node: Node, target: Any, name: str, args: Args, result: Any) -> None:
        several = isinstance(result, tuple | list)
        fakes = tuple(result) if several else (result,)
        used = tuple(self._is_used(node, i) for i in range(len(fakes))) if several else (True,)
        if any(isinstance(fake, torch.Tensor) and flag for fake, flag in zip(fakes, used, strict=True)):
            site = Site(self, fakes, used)
            effects = ("random",) if draws(target, name, args) else ()
            text = ATEN.get(str(target), str(target))
            outs = tuple(site.out(i) if flag else None for i, flag in enumerate(used))
            copied = name == "clone" and target is not node.target
            values = (args.self,) if copied else self._bound(node.args)
            calls = self.call(text, values, {} if copied else node.kwargs, outs)
            self._emit(site, name, args, tuple(calls), effects)
            values_out = tuple(self._result(site, i) if flag else None for i, flag in enumerate(used))
            self.env[node] = values_out if several else values_out[0]

    def _is_used(self, node: Node, i: int) -> bool:
        return any(user.target is not operator.getitem or user.args[1] == i for user in node.users if user in self.live)

    def _emit(self, site: Site, name: str, args: Args, calls: tuple[Call, ...], effects: tuple[str, ...]) -> None:
        """The operation's kernels: by its rule, or opaque."""
        known, temps = set(self.buffers), self._temps
        try:
            if effects or name not in RULES:
                raise NotLowered("it draws random numbers" if effects else "it has no rule")
            kernels = self._lowered(site, name, args, calls)
        except NotLowered as reason:
            log.debug("%s (line %s) stays a library call: %s", name, self.line, reason)
            for unused in self.buffers.keys() - known:
                del self.buffers[unused]
            self._temps = temps
            exports = tuple(result for call in calls for result in call.results if result in known and result)
            kernels = [Kernel("", Opaque(effects), name, calls, exports=exports)]
        for kernel in kernels:
            self._append(kernel)

    def _lowered(self, site: Site, name: str, args: Args, calls: tuple[Call, ...]) -> list[Kernel]:
        found = RULES[name](site, args)
        stages = tuple(item for item in found if not isinstance(item, Piece))
        pieces = [item for item in found if isinstance(item, Piece)]
        if stages:
            pieces = [Piece(stages, locals=tuple(site.locals))]
        kernels: list[Kernel] = []
        for piece in pieces:
            own = calls if piece.calls is None else piece.calls
            kernel = Kernel("", Stages(piece.stages, piece.locals), piece.op or name, own)
            made = {result for call in own for result in call.results}
            if extra := {ref for call in own for ref in call.refs()} - made - set(kernel.reads):
                raise NotLowered(f"its call needs {', '.join(sorted(extra))}, which its stages do not read")
            kernels.append(kernel)
        return kernels

    def _append(self, kernel: Kernel) -> None:
        self.kernels.append(replace(kernel, lines=() if self.line is None else (self.line,)))

    def _result(self, site: Site, i: int) -> Value:
        fake = site.fakes[i]
        buffer = self.buffers[site.out(i)]
        storage = Storage(buffer)
        self.memory[next(storages(fake))] = _Memory(storage, self.size(fake.storage_offset()) * -1)
        return Value(storage, fake, buffer.shape, buffer.strides, Index())


def lower(exported: Exported, sizes: Sizes | None = None) -> Program:
    """The Program of a traced graph.

    Raises:
        CaptureError: something that the IR has no place for; carries the user's line.
    """
    return Lowering(exported, sizes or Sizes()).run()


# ---- helpers -----------------------------------------------------------------------------------------------------


def _functional(node: Node, name: str, args: Args) -> Any:
    """The overload that returns its result instead of overwriting; None where there is none with equal meaning."""
    packet = getattr(torch.ops.aten, name.rstrip("_"), None)
    overload = node.target._overloadname or "default"  # type: ignore[union-attr]
    if packet is None or not name.endswith("_") or overload not in packet.overloads():
        return None
    tensors = [v.fake for v in vars(args).values() if isinstance(v, Value)]
    if len({t.dtype for t in tensors if t.dim() and t.dtype is not torch.bool}) > 1 or any(
        t.dim() > tensors[0].dim() for t in tensors
    ):
        return None
    functional = getattr(packet, overload)
    same = [a.name for a in functional._schema.arguments] == [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    return functional if same else None


def _same_window(left: Value, right: Value) -> bool:
    """True for the same elements of the same memory."""
    where = (left.storage, left.offset, left.shape, left.strides)
    return where == (right.storage, right.offset, right.shape, right.strides)


def _same_layout(left: Value, right: Any) -> bool:
    return (
        isinstance(right, Value) and right.whole and right.scalar is None
        and (left.dtype, left.shape, left.strides) == (right.dtype, right.shape, right.strides)
    )  # fmt: skip
