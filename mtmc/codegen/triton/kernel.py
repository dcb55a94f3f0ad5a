"""One kernel of a Program to one ``@triton.jit`` function and the lines that launch it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from mtmc.codegen.triton.emit import FileParts, identifier
from mtmc.codegen.triton.ops import POINTER_TYPE
from mtmc.codegen.writer import Writer
from mtmc.data.candidate import KernelSignature
from mtmc.errors import CodegenError
from mtmc.ir.index import Dim, Index, floordiv
from mtmc.ir.program import Kernel, Program, Stages, Tile


@dataclass(frozen=True)
class RenderedKernel:
    """Text of one kernel. ``launch`` are lines of ``forward``; buffers are variables named by ``identifier``."""

    function: str
    text: str
    launch: tuple[str, ...]
    signature: KernelSignature
    zeroed: tuple[str, ...] = ()
    """Written buffers that must start from zero (they are accumulated into)."""


@dataclass(frozen=True)
class Launch:
    """What a renderer decides: the grid, and the compile-time arguments in order."""

    grid: tuple[str, ...]
    constexprs: tuple[tuple[str, int], ...]
    extra: tuple[tuple[str, str, str], ...] = ()
    """Further run-time arguments: name, Triton type and what the launch passes."""
    before: tuple[str, ...] = ()
    """Lines of ``forward`` ahead of the launch, such as the making of tensor descriptors."""
    without: tuple[str, ...] = ()
    """Buffers that come through an extra argument instead of a pointer."""


class KernelFrame:
    """The parts that are the same for every form: name, arguments, guard, launch line."""

    def __init__(self, program: Program, kernel: Kernel, parts: FileParts) -> None:
        if not isinstance(kernel.impl, Tile) or not isinstance(kernel.spec, Stages):
            raise CodegenError(f"{kernel.id} ({kernel.note}) has no tile implementation")
        self.program = program
        self.kernel = kernel
        self.parts = parts
        self.schedule = kernel.impl.schedule
        self.spec = kernel.spec
        self.names: Counter[str] = Counter()
        self.body = Writer(level=1)
        self.dims = sorted({dim.name for dim in _dims_of(program, kernel)})
        buffers = list(dict.fromkeys([*kernel.reads, *kernel.writes, *([kernel.guard] if kernel.guard else [])]))
        self.buffers = [name for name in buffers if name not in self.spec.locals]
        self.names.update(self.dims)
        self.names.update(f"{identifier(name)}_ptr" for name in self.buffers)

    @property
    def function(self) -> str:
        return identifier(f"{self.kernel.id}_{re.sub(r'[^a-zA-Z0-9]+', '_', self.kernel.op)}")[:60].rstrip("_")

    @property
    def wide(self) -> bool:
        """True where some buffer has 2**31 elements or more, so that offsets need 64 bits."""
        return any(self.program.buffer(name).numel.maximum() >= 2**31 for name in self.buffers)

    def finish(self, launch: Launch, comment: str, stages: int | None = None) -> RenderedKernel:
        """Puts signature, guard and body together. ``comment`` says in one line what the kernel computes."""
        schedule = self.schedule
        buffers = [name for name in self.buffers if name not in launch.without]
        pointers = [f"{identifier(name)}_ptr" for name in buffers]
        extra = [name for name, _, _ in launch.extra]
        constants = [name for name, _ in launch.constexprs]
        parameters = [*pointers, *self.dims, *extra, *(f"{name}: tl.constexpr" for name in constants)]
        head = Writer()
        head.line("@triton.jit")
        opening = f"def {self.function}({', '.join(parameters)}):"
        if len(opening) <= 110:
            head.line(opening)
        else:
            head.line(f"def {self.function}(")
            for parameter in parameters:
                head.line(f"    {parameter},")
            head.line("):")
        head.line(f'    """{comment}"""')
        if self.kernel.guard:
            head.line(f"    if tl.load({identifier(self.kernel.guard)}_ptr) == 0:")
            head.line("        return")
        arguments = [identifier(name) for name in buffers] + self.dims + [text for _, _, text in launch.extra]
        options = [f"{name}={value}" for name, value in launch.constexprs]
        depth = schedule.stages if stages is None else stages
        options += [f"num_warps={schedule.warps}", f"num_stages={depth}"]
        line = f"{self.function}[({', '.join(launch.grid)},)]({', '.join(arguments + options)})"
        signature = KernelSignature(
            kernel=self.kernel.id,
            function=self.function,
            args=tuple(
                [(f"{identifier(n)}_ptr", POINTER_TYPE[self.program.dtype(n)]) for n in buffers]
                + [(name, "i32") for name in self.dims]
                + [(name, kind) for name, kind, _ in launch.extra]
            ),
            constexprs=launch.constexprs,
            aligned=tuple(pointers),
            num_warps=schedule.warps,
            num_stages=depth,
        )
        zeroed = tuple(dict.fromkeys(s.target for s in self.spec.stages if s.accumulate))
        return RenderedKernel(self.function, head.text() + self.body.text(), (*launch.before, line), signature, zeroed)


def _dims_of(program: Program, kernel: Kernel) -> set[Dim]:
    found: set[Dim] = set()
    for name in (*kernel.reads, *kernel.writes):
        for extent in program.buffer(name).shape:
            found |= extent.dims
    return found


def text_of(index: Index) -> str:
    """An index over dims only, as Python text."""
    return str(index)


def cdiv_text(total: Index, block: int) -> str:
    """``ceil(total / block)`` as Python text, computed where it is a constant."""
    return str(floordiv(total + block - 1, Index.of(block)))


def full_tiles(total: Index, block: int) -> bool:
    """True where tiles of ``block`` never stick out."""
    return (total % block).constant == 0
