"""What a Program is: ordered kernels over named buffers, meaning kept apart from implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import TypeAlias

from mtmc.errors import IRError
from mtmc.ir.expr import Stage
from mtmc.ir.index import Dim, Index, contiguous_strides, product
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType


class Role(StrEnum):
    INPUT = "input"
    """An argument of forward; ``source`` is its position."""
    PARAMETER = "parameter"
    """A parameter of the module; ``source`` is its attribute path, such as ``fc.weight``."""
    STATE = "state"
    """A registered buffer of the module; ``source`` is its attribute path."""
    CONSTANT = "constant"
    """A tensor made at trace time; ``source`` is its Python text (``torch.tensor(...)``) or attribute path."""
    TEMP = "temp"


@dataclass(frozen=True)
class Buffer:
    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    """In elements."""
    role: Role = Role.TEMP
    source: str = ""

    @staticmethod
    def temp(name: str, dtype: DType, shape: tuple[Index, ...]) -> Buffer:
        return Buffer(name, dtype, shape, contiguous_strides(shape))

    @property
    def numel(self) -> Index:
        return product(self.shape)

    @property
    def bytes(self) -> Index:
        return self.numel * self.dtype.bytes

    @property
    def contiguous(self) -> bool:
        return self.strides == contiguous_strides(self.shape)

    def offset(self, index: tuple[Index, ...]) -> Index:
        """Element offset of a multi-index from the buffer's first element."""
        return _offset(self.strides, index)


@lru_cache(maxsize=100_000)
def _offset(strides: tuple[Index, ...], index: tuple[Index, ...]) -> Index:
    # forms and renderers ask for the same few offsets again and again
    total = Index()
    for value, stride in zip(index, strides, strict=True):
        total = total + value * stride
    return total


# ---- what PyTorch runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ref:
    """The value of a buffer, or of an earlier call of the same kernel."""

    name: str


@dataclass(frozen=True)
class Token:
    """A non-tensor PyTorch constant, as source text: ``torch.float32``, ``torch.strided``."""

    text: str


Arg: TypeAlias = "Ref | Token | Index | None | bool | int | float | str | tuple[Arg, ...]"


@dataclass(frozen=True)
class Call:
    """One ATen call, such as ``aten.linear.default``. ``results`` names what it returns; None drops one."""

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    results: tuple[str | None, ...] = ()
    view: bool = False
    """True where the call only makes a view and does no work on the device."""

    def refs(self) -> Iterator[str]:
        def visit(arg: Arg) -> Iterator[str]:
            if isinstance(arg, Ref):
                yield arg.name
            elif isinstance(arg, tuple):
                for item in arg:
                    yield from visit(item)

        yield from visit(self.args)
        for _, value in self.kwargs:
            yield from visit(value)


# ---- kernels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stages:
    """A spec that is known to the point: tensor expressions in order.

    ``locals`` are buffers written and read only inside the kernel: they live in registers, or are recomputed.
    """

    stages: tuple[Stage, ...]
    locals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opaque:
    """A spec that only PyTorch knows (``Kernel.calls``), with its declared effects: ``random`` where it draws
    from the generator, ``view`` where it only renames memory."""

    effects: tuple[str, ...] = ()


Spec: TypeAlias = Stages | Opaque


@dataclass(frozen=True)
class Library:
    """PyTorch runs ``Kernel.calls``. Every captured operation starts so."""


@dataclass(frozen=True)
class Tile:
    """The compiler coder writes the kernel from its stages and this schedule."""

    schedule: Schedule


@dataclass(frozen=True)
class Source:
    """Somebody's text: a file that defines ``function(inputs..., outputs...)`` over the kernel's read and written
    buffers, in the order of ``Kernel.reads`` and ``Kernel.writes``; several launches and scratch are allowed."""

    text: str
    function: str


Implementation: TypeAlias = Library | Tile | Source


@dataclass(frozen=True)
class Kernel:
    id: str
    spec: Spec
    op: str
    """Human name of the operation: ``linear``; ``linear+relu`` when fused."""
    calls: tuple[Call, ...] = ()
    """What PyTorch would run for the same meaning. Empty for kernels that actions introduced: those have no
    Library implementation."""
    impl: Implementation = field(default_factory=Library)
    lines: tuple[int, ...] = ()
    """Source lines in the user's file, ascending."""
    rounding: str = "exact"
    """What the reference was measured to do with its operands: ``exact``, or ``tf32`` (11 significant bits)."""
    guard: str | None = None
    """A one-element buffer: the kernel runs only where it is not zero, and then replaces its outputs."""

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Buffers that come from outside the kernel, in order of first use."""
        made: set[str] = set()
        found: dict[str, None] = {}
        if isinstance(self.spec, Stages):
            for stage in self.spec.stages:
                for name in stage.reads:
                    if name not in made:
                        found[name] = None
                made.add(stage.target)
        else:
            for call in self.calls:
                for name in call.refs():
                    if name not in made:
                        found[name] = None
                made.update(result for result in call.results if result)
        return tuple(found)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Buffers that the kernel leaves in memory, in order."""
        if isinstance(self.spec, Stages):
            targets = dict.fromkeys(stage.target for stage in self.spec.stages)
            return tuple(name for name in targets if name not in self.spec.locals)
        return tuple(name for call in self.calls for name in call.results if name and name in self.exports)

    @cached_property
    def depends(self) -> tuple[str, ...]:
        """All buffers whose value matters to the kernel: what it reads, its guard, and what a guarded kernel leaves."""
        guarded = (self.guard, *self.writes) if self.guard else ()
        return tuple(dict.fromkeys((*self.reads, *(name for name in guarded if name))))

    exports: tuple[str, ...] = ()
    """Opaque kernels: which results of ``calls`` are buffers of the Program (the others stay inside)."""

    @property
    def note(self) -> str:
        """``linear, line 15`` or ``linear+max, lines 15, 20``: how a region is named for people."""
        if not self.lines:
            return self.op
        word = "line" if len(self.lines) == 1 else "lines"
        return f"{self.op}, {word} {', '.join(map(str, self.lines))}"


@dataclass(frozen=True)
class Update:
    """At the end of forward, ``state`` (a STATE buffer) takes the value of ``value``."""

    state: str
    value: str


@dataclass(frozen=True)
class Program:
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[str, ...]
    """Buffers that forward returns, in order."""
    updates: tuple[Update, ...] = ()
    output_tree: str = "tensor"
    """How forward packs its outputs: ``tensor``, ``tuple`` or ``list``."""
    fixed_arguments: tuple[tuple[int, bool | int | float | str | None], ...] = ()
    """Arguments of forward that are no tensors: position and the value that capture baked in."""
    launch: str = "eager"
    """The launch plan: ``eager``, or ``graph`` (one captured CUDA graph)."""

    @cached_property
    def table(self) -> dict[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    def buffer(self, name: str) -> Buffer:
        if name not in self.table:
            raise IRError(f"no buffer '{name}'; the program has {', '.join(self.table)}")
        return self.table[name]

    def dtype(self, name: str) -> DType:
        return self.buffer(name).dtype

    def kernel(self, kernel_id: str) -> Kernel:
        for kernel in self.kernels:
            if kernel.id == kernel_id:
                return kernel
        raise IRError(f"no kernel '{kernel_id}'; the program has {', '.join(k.id for k in self.kernels)}")

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """Declared dynamic dims, by name."""
        found = {dim for buffer in self.buffers for extent in buffer.shape for dim in extent.dims}
        return tuple(sorted(found, key=lambda dim: dim.name))

    def producer(self, name: str) -> Kernel | None:
        """The kernel that writes a buffer first (a guarded kernel only replaces)."""
        return next((k for k in self.kernels if name in k.writes and k.guard is None), None)

    def writers(self, name: str) -> tuple[Kernel, ...]:
        """All kernels that write a buffer, a guarded one included. Fusion needs exactly one."""
        return tuple(k for k in self.kernels if name in k.writes)

    def consumers(self, name: str) -> tuple[Kernel, ...]:
        return tuple(k for k in self.kernels if name in k.depends)

    @cached_property
    def live_out(self) -> frozenset[str]:
        """Buffers that must exist after the last kernel."""
        return frozenset(self.outputs) | {update.value for update in self.updates}

    def replace_kernel(self, kernel_id: str, *new: Kernel, buffers: tuple[Buffer, ...] = ()) -> Program:
        """A Program with one kernel replaced by others in its place, and with further buffers; buffers that
        nothing uses any more are dropped."""
        kernels: list[Kernel] = []
        for kernel in self.kernels:
            kernels.extend(new if kernel.id == kernel_id else (kernel,))
        return replace(self, kernels=tuple(kernels), buffers=self.buffers + buffers).pruned()

    def pruned(self) -> Program:
        """Drops temporaries that no kernel and no result mentions."""
        used = set(self.live_out) | {update.state for update in self.updates}
        for kernel in self.kernels:
            used |= set(kernel.reads) | set(kernel.writes) | ({kernel.guard} if kernel.guard else set())
            if isinstance(kernel.spec, Stages):
                used |= set(kernel.spec.locals)
            for call in kernel.calls:
                used |= set(call.refs())
        return replace(self, buffers=tuple(b for b in self.buffers if b.role is not Role.TEMP or b.name in used))

    def fresh(self, prefix: str) -> str:
        """A buffer or kernel name that is not taken: ``t7``, ``k7``."""
        taken = set(self.table) | {kernel.id for kernel in self.kernels}
        number = 0
        while f"{prefix}{number}" in taken:
            number += 1
        return f"{prefix}{number}"
