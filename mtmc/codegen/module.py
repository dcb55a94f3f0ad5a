"""A whole Program to one plain Python file that defines ``ModelNew`` and imports nothing of mtmc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtmc.codegen.inplace import library_calls, updated_in_place
from mtmc.codegen.library import render_calls
from mtmc.codegen.triton.emit import FileParts, identifier
from mtmc.codegen.triton.kernel import RenderedKernel
from mtmc.codegen.triton.ops import HELPERS
from mtmc.codegen.triton.render import render_kernel
from mtmc.codegen.userfile import UserFile
from mtmc.codegen.writer import Writer
from mtmc.data.candidate import Candidate
from mtmc.errors import CodegenError
from mtmc.ir.index import Index
from mtmc.ir.program import Buffer, Kernel, Library, Opaque, Program, Role, Source, Tile

if TYPE_CHECKING:  # only its text and name are read here: this layer stays free of torch
    from mtmc.problem.problem import Problem

CODEGEN_VERSION = "2"
_FREE_ABOVE = 1 << 20
"""Temporaries of this many bytes are dropped after their last use, as eager PyTorch would."""

_IMPORTS = "import torch\n"
_TRITON_IMPORTS = "import torch\nimport triton\nimport triton.language as tl\n"
_CHECK = '''
def _check(name, tensor, shape, dtype):
    """One clear sentence where the kernels below were not made for an argument."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        got = f"{tuple(tensor.shape)} and {tensor.dtype}"
        raise ValueError(f"ModelNew was generated for {name} of shape {shape} and {dtype}, got {got}")
    return tensor.contiguous()
'''
_PLACE = '''
def _place(root, path, value, parameter):
    """Registers a tensor under the dotted name that it had in the original module."""
    *parents, leaf = path.split(".")
    for name in parents:
        if name not in root._modules:
            root.add_module(name, torch.nn.Module())
        root = root._modules[name]
    if parameter:
        root.register_parameter(leaf, torch.nn.Parameter(value, requires_grad=value.is_floating_point()))
    elif parameter is None:
        setattr(root, leaf, value)
    else:
        root.register_buffer(leaf, value)
'''


def render(program: Program, problem: Problem, header: str = "") -> Candidate:
    """Renders every kernel and the launch plan.

    Args:
        header: docstring of the file: versions, hardware, the command that verifies it again.

    Raises:
        CodegenError, IRError: a kernel cannot be rendered; the message names it.
    """
    if program.launch != "eager":
        raise CodegenError(f"launch plan '{program.launch}' is not rendered yet; use eager launches")
    return _FileRenderer(program, problem, header).candidate()


@dataclass(frozen=True)
class _Step:
    """One kernel of the launch plan as lines of forward."""

    kernel: Kernel
    lines: tuple[str, ...]
    allocates: tuple[Buffer, ...]
    zeroed: tuple[str, ...]


class _FileRenderer:
    def __init__(self, program: Program, problem: Problem, header: str) -> None:
        self.program, self.problem, self.header = program, problem, header
        self.parts = FileParts.new()
        self.places = updated_in_place(program)
        self.rendered: list[RenderedKernel] = []
        self.sources: list[str] = []
        self.steps = [self._step(kernel) for kernel in program.kernels]

    # -- pieces of the file -------------------------------------------------------------------------------
    def candidate(self) -> Candidate:
        library = tuple(
            k.id for k in self.program.kernels if isinstance(k.impl, Library) and not all(call.view for call in k.calls)
        )
        return Candidate(
            source=self._file(marked=False),
            marked_source=self._file(marked=True),
            signatures=tuple(kernel.signature for kernel in self.rendered),
            library_kernels=library,
        )

    def _step(self, kernel: Kernel) -> _Step:
        match kernel.impl:
            case Library():
                lines = render_calls(library_calls(kernel, self.places), identifier, kernel.writes)
                return _Step(kernel, (*lines, *self._dense(kernel)), self._aliases(kernel), ())
            case Tile():
                rendered = render_kernel(self.program, kernel, self.parts)
                self.rendered.append(rendered)
                return _Step(kernel, rendered.launch, self._written(kernel), rendered.zeroed)
            case Source(text, function):
                self.sources.append(text.strip())
                reads = [identifier(name) for name in kernel.reads]
                writes = [identifier(name) for name in kernel.writes]
                return _Step(kernel, (f"{function}({', '.join(reads + writes)})",), self._written(kernel), ())
        raise CodegenError(f"{kernel.id} has no implementation")

    def _dense(self, kernel: Kernel) -> list[str]:
        """An opaque call may lay its result out as it likes; generated kernels read the layout seen at capture."""
        if not isinstance(kernel.spec, Opaque) or all(call.view for call in kernel.calls):
            return []
        tiled = {name for k in self.program.kernels if not isinstance(k.impl, Library) for name in k.reads}
        names = [name for name in kernel.writes if name in tiled and self.program.buffer(name).contiguous]
        return [f"{identifier(name)} = {identifier(name)}.contiguous()" for name in names]

    def _aliases(self, kernel: Kernel) -> tuple[Buffer, ...]:
        return tuple(self.program.buffer(name) for name in kernel.writes if name in self.places)

    def _written(self, kernel: Kernel) -> tuple[Buffer, ...]:
        """Buffers that the step must allocate: those that no earlier kernel wrote."""
        before: set[str] = set()
        for other in self.program.kernels:
            if other.id == kernel.id:
                break
            before |= set(other.writes)
        return tuple(self.program.buffer(name) for name in kernel.writes if name not in before)

    def _prelude(self, marked: bool) -> str:
        text = _TRITON_IMPORTS if self.rendered or any("triton" in s for s in self.sources) else _IMPORTS
        setup = list(self.parts.setup)
        text += "".join(f"{line}\n" for line in setup if line.startswith(("import ", "from ")))
        text += "".join(f"\n{line}\n" for line in setup if not line.startswith(("import ", "from ")))
        for name in self.parts.helpers:
            text += "\n" + HELPERS[name]
        for kernel in self.rendered:
            text += "\n\n" + kernel.text
        for source in self.sources:
            text += "\n\n" + source + "\n"
        text += "\n" + _CHECK
        # after the kernels: Triton's cache knows them by their line, and both files must share it
        return text + ("\n\ndef _mark(kernel):\n    return None\n" if marked else "")

    def _file(self, marked: bool) -> str:
        docstring = f'"""{self.header.strip()}\n"""\n\n' if self.header else ""
        if self.problem.kind == "file":
            user = UserFile.parse(self.problem.text)
            forward = self._forward(user.signature, user.arguments, marked)
            return docstring + user.render(self._prelude(marked), forward)
        arguments = self._arguments()
        signature = f"def forward({', '.join(['self', *arguments])}):"
        forward = self._forward(signature, arguments, marked)
        keeps = any(buffer.role in (Role.PARAMETER, Role.STATE) for buffer in self.program.buffers)
        return docstring + self._prelude(marked) + (_PLACE if keeps else "") + self._module_class(forward)

    def _module_class(self, forward: str) -> str:
        out = Writer()
        out.line()
        out.line()
        with out.indent("class ModelNew(torch.nn.Module):"):
            out.line(f'"""{self.problem.name}, with the parameters of the original under their own names."""')
            out.line()
            with out.indent("def __init__(self):"):
                out.line("super().__init__()")
                for buffer in self.program.buffers:
                    if buffer.role in (Role.PARAMETER, Role.STATE):
                        is_parameter = buffer.role is Role.PARAMETER
                        empty = f"torch.empty({_shape(buffer.shape)}, dtype=torch.{buffer.dtype})"
                        out.line(f'_place(self, "{buffer.source}", {empty}, {is_parameter})')
                    elif buffer.role is Role.CONSTANT and "(" not in buffer.source:
                        empty = f"torch.empty({_shape(buffer.shape)}, dtype=torch.{buffer.dtype})"
                        out.line(f'_place(self, "{buffer.source}", {empty}, None)')
            out.line()
            out.lines(forward)
        return out.text()

    # -- forward ------------------------------------------------------------------------------------------
    def _inputs(self) -> list[Buffer]:
        inputs = [buffer for buffer in self.program.buffers if buffer.role is Role.INPUT]
        return sorted(inputs, key=lambda buffer: int(buffer.source))

    def _forward(self, signature: str, arguments: tuple[str, ...], marked: bool) -> str:
        out = Writer()
        with out.indent(signature):
            self._guards(out, arguments)
            self._bindings(out)
            last = self._last_use()
            for number, step in enumerate(self.steps):
                for buffer in step.allocates:
                    out.line(f"{identifier(buffer.name)} = {self._allocation(buffer, buffer.name in step.zeroed)}")
                for line in step.lines:
                    out.line(line)
                if marked:
                    out.line(f'_mark("{step.kernel.id}")')
                dead = [n for n, at in last.items() if at == number]
                if dead and not marked:
                    out.line(f"del {', '.join(identifier(name) for name in dead)}")
            for update in self.program.updates:
                if update.value in self.places:
                    continue
                state = self.program.buffer(update.state)
                out.line(f"{self._attribute(state.source)}.copy_({identifier(update.value)})")
            out.line(f"return {self._results()}")
        return out.text()

    def _arguments(self) -> tuple[str, ...]:
        """Names of a module's positional arguments: tensors by their buffer, plain values by their position."""
        names = {int(buffer.source): identifier(buffer.name) for buffer in self._inputs()}
        names |= {position: f"argument{position}" for position, _ in self.program.fixed_arguments}
        return tuple(names[position] for position in sorted(names))

    def _guards(self, out: Writer, arguments: tuple[str, ...]) -> None:
        out.line('"""Generated by mtmc. Inference only."""')
        inputs = self._inputs()
        watched = ", ".join(["*self.parameters()", *(arguments[int(buffer.source)] for buffer in inputs)])
        with out.indent(f"if torch.is_grad_enabled() and any(t.requires_grad for t in ({watched},)):"):
            out.line('raise RuntimeError("ModelNew computes no gradients; call it under torch.no_grad()")')
        bound: set[str] = set()
        for buffer in inputs:
            argument = arguments[int(buffer.source)]
            for axis, extent in enumerate(buffer.shape):
                if extent.single is not None and str(extent) not in bound:
                    bound.add(str(extent))
                    out.line(f"{extent} = {argument}.shape[{axis}]")
            check = f'_check("{argument}", {argument}, {_shape(buffer.shape)}, torch.{buffer.dtype})'
            out.line(f"{identifier(buffer.name)} = {check}")
        for position, value in self.program.fixed_arguments:
            argument = arguments[position]
            with out.indent(f"if {argument} != {value!r}:"):
                out.line(f'raise ValueError(f"ModelNew was generated for {argument} = {value!r}, got {{{argument}}}")')
        for dim in self.program.dims:
            with out.indent(f"if {dim.name} > {dim.limit}:"):
                out.line(
                    f'raise ValueError(f"ModelNew was generated for {dim.name} <= {dim.limit}, got {{{dim.name}}}")'
                )

    def _bindings(self, out: Writer) -> None:
        anchor = next((identifier(b.name) for b in self._inputs()), None)
        if anchor is None:
            anchor = next((self._attribute(b.source) for b in self.program.buffers if b.role is Role.PARAMETER), None)
        out.line(f"device = {anchor}.device" if anchor else 'device = torch.device("cuda")')
        used = {name for kernel in self.program.kernels for name in kernel.depends} | set(self.program.live_out)
        for buffer in self.program.buffers:
            if buffer.role in (Role.PARAMETER, Role.STATE) and buffer.name in used:
                out.line(f"{identifier(buffer.name)} = {self._attribute(buffer.source)}")
            elif buffer.role is Role.CONSTANT and buffer.name in used:
                out.line(f"{identifier(buffer.name)} = {self._constant(buffer)}")

    def _attribute(self, path: str) -> str:
        return _attribute(path, subscripts=self.problem.kind == "file")

    def _constant(self, buffer: Buffer) -> str:
        text = buffer.source
        if "(" not in text:
            return self._attribute(text)
        return text if "device=" in text or not buffer.shape else f"{text[:-1]}, device=device)"

    def _allocation(self, buffer: Buffer, zeroed: bool) -> str:
        if buffer.name in self.places:
            return f"{identifier(self.places[buffer.name])}  # updated in place"
        shape, kind = _shape(buffer.shape), f"dtype=torch.{buffer.dtype}, device=device"
        if zeroed:
            return f"torch.zeros({shape}, {kind})"
        if buffer.contiguous:
            return f"torch.empty({shape}, {kind})"
        return f"torch.empty_strided({shape}, {_shape(buffer.strides)}, {kind})"

    def _last_use(self) -> dict[str, int]:
        """Large temporaries and the step after which nothing needs them."""
        last: dict[str, int] = {}
        aliased = {
            name
            for step in self.steps
            if isinstance(step.kernel.impl, Library) and any(call.view for call in step.kernel.calls)
            for name in step.kernel.reads
        }
        for number, step in enumerate(self.steps):
            for name in (*step.kernel.depends, *step.kernel.writes):
                buffer = self.program.buffer(name)
                if buffer.role is Role.TEMP and buffer.bytes.maximum() >= _FREE_ABOVE:
                    last[name] = number
        for name in self.program.live_out | aliased | set(self.places):
            last.pop(name, None)
        return last

    def _results(self) -> str:
        names = [identifier(name) for name in self.program.outputs]
        if self.program.output_tree == "tensor":
            return names[0]
        if self.program.output_tree == "list":
            return f"[{', '.join(names)}]"
        return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _shape(extents: tuple[Index, ...]) -> str:
    return f"({', '.join(map(str, extents))}{',' if len(extents) == 1 else ''})"


def _attribute(path: str, subscripts: bool) -> str:
    """``layers.0.weight`` as Python: ``self.layers[0].weight``, or through getattr where ``layers`` may be no list."""
    text = "self"
    for part in path.split("."):
        if not part.isdigit():
            text += f".{part}"
        else:
            text = f"{text}[{part}]" if subscripts else f'getattr({text}, "{part}")'
    return text
