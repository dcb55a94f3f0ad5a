"""A Program as JSON text, exactly, and as a hash that names and orders do not change.

The JSON is one table of nodes, innermost first, in which every distinct value stands once: a field that holds
a node is ``{"n": position}``. Fields at their default are left out, so that fields can be added later.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, cast

from mtmc.errors import IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, IndexValue, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.index import Atom, Axis, Dim, FloorDiv, Index, Mod
from mtmc.ir.program import (
    Arg,
    Buffer,
    Call,
    Kernel,
    Library,
    Opaque,
    Program,
    Ref,
    Role,
    Source,
    Stages,
    Tile,
    Token,
    Update,
)
from mtmc.ir.schedule import Schedule
from mtmc.ir.types import DType

VERSION = 1

_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Axis, Dim, FloorDiv, Mod, Index,
        Const, IndexValue, Load, Op, Select, Cast, Reduce, Scan, Contract, Stage,
        Schedule, Buffer, Ref, Token, Call, Stages, Opaque, Library, Tile, Source, Kernel, Update, Program,
    )
}  # fmt: skip
_FIELDS = {cls: dataclasses.fields(cls) for cls in _CLASSES.values()}
_KINDS = {cls: {field.name: field.type for field in known} for cls, known in _FIELDS.items()}
_ENUMS: dict[str, Callable[[Any], Any]] = {"DType": DType, "Role": Role}
"""Fields of these annotated types are written as plain strings."""


# ---- text --------------------------------------------------------------------------------------------------


def to_json(program: Program) -> str:
    """One line of JSON; :func:`from_json` gives an equal Program back."""
    writer = _Writer()
    root = writer.value(program)["n"]
    return _dump({"version": VERSION, "nodes": writer.nodes, "program": root})


def from_json(text: str) -> Program:
    """The Program of :func:`to_json`. Raises IRError where the text is not one."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise IRError(f"the Program was written with schema {data['version']}, this mtmc reads {VERSION}")
        nodes: list[Any] = []
        for entry in data["nodes"]:
            cls = _CLASSES[entry.pop("is")]
            kinds = _KINDS[cls]
            nodes.append(cls(**{name: _read(value, kinds[name], nodes) for name, value in entry.items()}))
        program = nodes[data["program"]]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise IRError(f"the text is not a Program of mtmc: {type(error).__name__}: {error}") from error
    if not isinstance(program, Program):
        raise IRError(f"the text holds a {type(program).__name__}, not a Program")
    return program


_dump = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class _Writer:
    """Numbers nodes by their own text, so that 1, 1.0 and True, equal in Python, stay apart."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._seen: dict[int, dict[str, Any]] = {}  # by id: the values outlive the writer

    def value(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return [self.value(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"f": repr(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if type(value) not in _FIELDS:
            raise IRError(f"a {type(value).__name__} can't be part of a Program: {value!r}")
        if id(value) not in self._seen:
            self._seen[id(value)] = {"n": self._number(value)}
        return self._seen[id(value)]

    def _number(self, node: Any) -> int:
        entry: dict[str, Any] = {"is": type(node).__name__}
        for field in _FIELDS[type(node)]:
            value = getattr(node, field.name)
            if not _is_default(field, value):
                entry[field.name] = self.value(value)
        key = _dump(entry)
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(entry)
        return self._numbers[key]


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return type(value) is type(field.default) and repr(value) == repr(field.default)


def _read(value: Any, kind: Any, nodes: list[Any]) -> Any:
    if kind in _ENUMS:
        return _ENUMS[kind](value)
    if isinstance(value, list):
        return tuple(_read(item, None, nodes) for item in value)
    if isinstance(value, dict):
        return float(value["f"]) if "f" in value else nodes[value["n"]]
    return value


# ---- hash --------------------------------------------------------------------------------------------------


def structural_hash(subject: Program | Kernel, program: Program | None = None) -> str:
    """32 hex digits that do not depend on names of buffers and axes, ids, lines or human names.

    A Program is hashed as a dataflow graph (each kernel by its own form and the hashes of what it reads), so
    two topological orders of the same kernels are one. A Kernel (``program`` is then needed for its buffers)
    has the hash of :func:`kernel_hash`.
    """
    if isinstance(subject, Program):
        return _program_hash(subject)
    if program is None:
        raise IRError(f"to hash kernel {subject.id} alone, its program is needed for the shapes")
    return kernel_hash(program, subject)


def kernel_hash(program: Program, kernel: Kernel) -> str:
    """Equal for kernels of the same spec, implementation, types, shapes and strides."""
    text, order = _form(kernel)
    return _digest([text, *(_layout(program.buffer(name)) for name in order)])


def kernel_classes(program: Program) -> dict[str, tuple[str, ...]]:
    """Kernel ids by :func:`kernel_hash`, in the order of the program."""
    classes: dict[str, tuple[str, ...]] = {}
    for kernel in program.kernels:
        key = kernel_hash(program, kernel)
        classes[key] = (*classes.get(key, ()), kernel.id)
    return classes


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()


def _program_hash(program: Program) -> str:
    state: dict[str, str] = {}  # what each buffer holds by now
    counts: dict[Role, int] = {}
    for buffer in program.buffers:
        counts[buffer.role] = counts.get(buffer.role, 0) + 1
        if buffer.role is not Role.TEMP:
            source = buffer.source or f"#{counts[buffer.role]}"
            state[buffer.name] = _digest([buffer.role, source, _layout(buffer)])
    kernels: list[str] = []
    generator = ""
    for kernel in program.kernels:
        text, order = _form(kernel)
        layouts = [_layout(program.buffer(name)) for name in order]
        # A buffer that is written again also carries what it held: stores may cover it in part.
        before = [state.get(name, "new") for name in order]
        random = isinstance(kernel.spec, Opaque) and "random" in kernel.spec.effects
        extra = [state.get(kernel.guard or "", ""), generator if random else ""]
        digest = _digest([text, *layouts, *before, *extra])
        kernels.append(digest)
        generator = digest if random else generator
        for name in kernel.writes:
            state[name] = _digest([digest, str(order.index(name))])
    updates = sorted(f"{state[u.state]}={state.get(u.value, 'new')}" for u in program.updates)
    results = [state.get(name, "new") for name in program.outputs]
    plan = [program.output_tree, repr(program.fixed_arguments), program.launch]
    return _digest([*sorted(kernels), "out", *results, *updates, *plan])


def _layout(buffer: Buffer) -> str:
    return _layout_text(buffer.dtype, buffer.shape, buffer.strides)


@lru_cache(maxsize=16384)
def _layout_text(dtype: DType, shape: tuple[Index, ...], strides: tuple[Index, ...]) -> str:
    return f"{dtype}[{'x'.join(map(str, shape))}|{'x'.join(map(str, strides))}]"


def _form(kernel: Kernel) -> tuple[str, tuple[str, ...]]:
    """The kernel with its buffers numbered in order of first use, and their names in that order. Kept in the
    kernel, as ``functools.cached_property`` would: a search hashes the same kernels again and again."""
    kept = vars(kernel).get("_form")
    if kept is None:
        kept = vars(kernel)["_form"] = _Form().kernel(kernel)
    return cast(tuple[str, tuple[str, ...]], kept)


class _Form:
    """Writes a kernel with alpha-renamed buffers and axes. Axes are numbered where they are bound (by a stage
    or a reduction), never by the order of terms inside an index, which depends on names."""

    def __init__(self) -> None:
        self.buffers: dict[str, int] = {}
        self.axes: dict[Axis, str] = {}

    def kernel(self, kernel: Kernel) -> tuple[str, tuple[str, ...]]:
        parts = [repr(kernel.impl), kernel.rounding, f"guard {kernel.guard is not None}"]
        spec = kernel.spec
        if isinstance(spec, Stages):
            parts += [self.stage(stage) for stage in spec.stages]
            parts.append("locals " + ",".join(sorted(self.buffer(name) for name in spec.locals)))
        else:
            parts.append("opaque " + ",".join(sorted(spec.effects)))
        if isinstance(spec, Opaque) or isinstance(kernel.impl, Library):
            parts += [self.call(call) for call in kernel.calls]
            parts.append("exports " + ",".join(self.buffer(name) for name in kernel.exports))
        else:
            parts.append(f"calls {bool(kernel.calls)}")
        outside = [name for name in self.buffers if self.is_buffer(kernel, name)]
        return "\n".join(parts), tuple(outside)

    def is_buffer(self, kernel: Kernel, name: str) -> bool:
        """Not a result that stays inside the calls."""
        inside = {result for call in kernel.calls for result in call.results if result}
        known = set(kernel.reads) | set(kernel.writes)
        if isinstance(kernel.spec, Stages):
            known |= set(kernel.spec.locals)
        return name in known or name not in inside

    def buffer(self, name: str) -> str:
        return f"b{self.buffers.setdefault(name, len(self.buffers))}"

    def bind(self, axes: tuple[Axis, ...]) -> str:
        for axis in axes:
            self.axes.setdefault(axis, f"i{len(self.axes)}")
        return ",".join(f"{self.axes[axis]}<{self.index(axis.extent)}" for axis in axes)

    def index(self, index: Index) -> str:
        terms = ("*".join([str(coef), *sorted(map(self.atom, mono))]) for mono, coef in index.terms)
        return "+".join(sorted(terms))

    def atom(self, atom: Atom) -> str:
        match atom:
            case Axis():
                return self.axes.setdefault(atom, f"i{len(self.axes)}")
            case Dim(name, limit):
                return f"{name}:{limit}"
            case FloorDiv(num, den):
                return f"({self.index(num)}//{self.index(den)})"
            case Mod(num, den):
                return f"({self.index(num)}%{self.index(den)})"

    def indices(self, indices: Iterable[Index | Expr]) -> str:
        return ";".join(self.index(i) if isinstance(i, Index) else self.expr(i) for i in indices)

    def when(self, when: tuple[Index, ...]) -> str:
        return "?" + ";".join(sorted(self.index(index) for index in when))

    def stage(self, stage: Stage) -> str:
        axes = self.bind(stage.axes)
        body = self.expr(stage.body)
        store = f"{self.buffer(stage.target)}[{self.indices(stage.store)}]{self.when(stage.when)}"
        return f"{axes}:{store}{stage.accumulate or ''}={body}"

    def expr(self, expr: Expr) -> str:
        match expr:
            case Const(value, dtype):
                return f"{dtype}({float(value) if dtype.is_float else int(value)!r})"
            case IndexValue(index, dtype):
                return f"{dtype}({self.index(index)})"
            case Load(buffer, subscripts, when, other):
                rest = f"{self.when(when)}:{float(other)}" if when else ""
                return f"{self.buffer(buffer)}[{self.indices(subscripts)}]{rest}"
            case Op(name, args):
                return f"{name}({','.join(map(self.expr, args))})"
            case Select(when, then, other):
                return f"select({self.when(when)},{self.expr(then)},{self.expr(other)})"
            case Cast(dtype, arg):
                return f"to_{dtype}({self.expr(arg)})"
            case Reduce(monoid, axes, args, part, when):
                bound = self.bind(axes)
                return f"{monoid}.{part}<{bound}>{self.when(when)}({','.join(map(self.expr, args))})"
            case Scan(monoid, axis, arg):
                return f"scan_{monoid}<{self.bind((axis,))}>({self.expr(arg)})"
            case Contract(axes, terms):
                bound = self.bind(axes)
                return f"dot<{bound}>({','.join(f'{self.expr(a)}*{self.expr(b)}' for a, b in terms)})"
        raise IRError(f"not an expression: {expr!r}")

    def call(self, call: Call) -> str:
        args = [self.arg(arg) for arg in call.args] + [f"{name}={self.arg(arg)}" for name, arg in call.kwargs]
        results = ",".join("_" if name is None else self.buffer(name) for name in call.results)
        return f"{results}={call.target}({','.join(args)})"

    def arg(self, arg: Arg) -> str:
        match arg:
            case Ref(name):
                return self.buffer(name)
            case Token(text):
                return f"<{text}>"
            case Index():
                return self.index(arg)
            case tuple():
                return f"({','.join(map(self.arg, arg))})"
            case _:
                return repr(arg)
