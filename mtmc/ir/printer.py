"""A Program as text for people, reports and policies: a line a kernel, a line a stage of generated ones."""

from __future__ import annotations

from collections.abc import Iterable

from mtmc.errors import IRError
from mtmc.ir.expr import Cast, Const, Contract, Expr, IndexValue, Load, Op, Reduce, Scan, Select, Stage
from mtmc.ir.forms import FORMS, MatmulForm, PointwiseForm, RowForm, ScanForm
from mtmc.ir.index import Axis, Index
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import (
    Arg,
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
)

COMMENT_COLUMN = 92

_INFIX: dict[str, tuple[str, int]] = {
    "logical_or": ("or", 1), "logical_and": ("and", 2),
    "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4),
    "add": ("+", 5), "sub": ("-", 5),
    "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "remainder": ("%", 7),
    "pow": ("**", 9),
}  # fmt: skip
"""Text and binding strength; a contraction (``sum_k a * b``) is between sums and products."""
_CONTRACT, _UNARY, _CALL = 6, 8, 10
_SHORT = {"minimum": "min", "maximum": "max"}
_SCANS = {"sum": "cumsum", "prod": "cumprod", "max": "cummax", "min": "cummin"}


def print_program(program: Program, buffers: bool = False) -> str:
    """All kernels in order, then what is returned and updated; ``buffers`` adds a line for each buffer."""
    lines: list[str] = []
    if buffers:
        for buffer in program.buffers:
            text = f"{label(program, buffer.name)} {buffer.dtype}[{_shape(buffer.shape)}] {buffer.role}"
            lines.append(text if buffer.contiguous else f"{text} strides {_shape(buffer.strides)}")
        lines.append("")
    if program.launch != "eager":
        lines.append(f"launch {program.launch}")
    lines += [print_kernel(program, kernel) for kernel in program.kernels]
    lines += [f"update {label(program, u.state)} = {label(program, u.value)}" for u in program.updates]
    lines.append("return " + ", ".join(label(program, name) for name in program.outputs))
    return "\n".join(lines) + "\n"


def print_kernel(program: Program, kernel: Kernel) -> str:
    """One line for a kernel that PyTorch or somebody's source runs; header and stages for a generated one."""
    writer = _Writer(program, kernel)
    spec = kernel.spec
    body: list[str] = []
    match kernel.impl:
        case Library() if kernel.calls:
            head = f"{kernel.id} library  {writer.calls()}"
        case Source(text, function):
            inputs = ", ".join(label(program, name) for name in kernel.reads)
            lines = len(text.splitlines())
            head = f"{kernel.id} source  {writer.targets(kernel.writes)} = {function}({inputs})  {lines} lines"
        case Tile():
            head, body = f"{kernel.id} tile {_schedule(program, kernel)}", writer.stages()
        case _:
            head, body = f"{kernel.id} library", writer.stages()
    if isinstance(spec, Opaque) and "random" in spec.effects:
        head += "  random"
    if kernel.guard is not None:
        head += f"  if {label(program, kernel.guard)}"
    if kernel.lines:
        word = "line" if len(kernel.lines) == 1 else "lines"
        head = f"{head:<{COMMENT_COLUMN}} # {word} {', '.join(map(str, kernel.lines))}"
    return "\n".join([head, *body])


def print_stage(program: Program, kernel: Kernel, stage: Stage) -> str:
    """``t0[m, n] = sum_k x[m, k] * fc.weight[n, k]``."""
    target, body = _Writer(program, kernel).stage(stage)
    return f"{target} {body}"


def label(program: Program, name: str) -> str:
    """What people know a buffer by: parameters and state by their path in the module."""
    buffer = program.table.get(name)
    if buffer is None or buffer.role in (Role.INPUT, Role.TEMP):
        return name
    return buffer.source if buffer.source.replace(".", "_").isidentifier() else name


def _shape(shape: Iterable[Index]) -> str:
    return ", ".join(map(str, shape))


# ---- schedule ----------------------------------------------------------------------------------------------


def _schedule(program: Program, kernel: Kernel) -> str:
    assert isinstance(kernel.impl, Tile)
    schedule = kernel.impl.schedule
    parts = [schedule.form, *_tiling(program, kernel)]
    parts.append(f"{schedule.warps} warp" + "s" * (schedule.warps != 1))
    if schedule.stages > 1:
        parts.append(f"{schedule.stages} stages")
    if schedule.group > 1:
        parts.append(f"groups of {schedule.group}")
    if schedule.order:
        parts.append("backwards")
    if schedule.persistent:
        parts.append("persistent")
    if schedule.descriptors:
        parts.append("descriptors")
    if not schedule.separate:
        parts.append("joint accumulator")
    return "  ".join(parts)


def _tiling(program: Program, kernel: Kernel) -> list[str]:
    assert isinstance(kernel.impl, Tile)
    schedule = kernel.impl.schedule
    tile = schedule.tile
    try:
        form = next(f for f in FORMS if f.name == schedule.form).match(program, kernel)
    except (StopIteration, IRError):
        return ["tile " + "x".join(map(str, tile))]  # a form that the printer does not know, or no longer fits
    match form:
        case MatmulForm() if len(tile) == 3:
            grid = [*(axis.name for axis in form.batch), _split(form.m, tile[0]), _split(form.n, tile[1])]
            dot = [] if form.half else [f"dot {schedule.dot}"]
            return [f"grid {' '.join(grid)}", f"loop {_split(form.k, tile[2])}", *dot]
        case RowForm() if len(tile) == 2:
            return [f"grid {_split(form.kept, tile[0])}", _inner(form.inner, tile[1], schedule.loop)]
        case ScanForm() if len(tile) == 2:
            return [f"grid {_split(form.kept, tile[0])}", _inner((form.axis,), tile[1], schedule.loop)]
        case PointwiseForm() if len(tile) == 1:
            return [f"grid {_split(form.domain, tile[0])}"]
    return ["tile " + "x".join(map(str, tile))]


def _split(axes: tuple[Axis, ...], size: int) -> str:
    names = " ".join(axis.name for axis in axes)
    return f"{names if len(axes) == 1 else f'({names})'}/{size}" if axes else "1"


def _inner(axes: tuple[Axis, ...], size: int, loop: bool) -> str:
    return f"loop {_split(axes, size)}" if loop else "whole " + " ".join(axis.name for axis in axes)


# ---- kernels and expressions -------------------------------------------------------------------------------


class _Writer:
    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.program = program
        self.kernel = kernel

    def label(self, name: str) -> str:
        return label(self.program, name)

    def targets(self, names: Iterable[str]) -> str:
        return ", ".join(f"{self.label(name)}[{_shape(self.program.buffer(name).shape)}]" for name in names)

    # -- library calls ------------------------------------------------------------------------------------
    def calls(self) -> str:
        """Results that stay inside are written into their use."""
        inside: dict[str, str] = {}
        lines: list[str] = []
        outside = set(self.kernel.writes)
        for call in self.kernel.calls:
            text = self.call(call, inside)
            results = [name for name in call.results if name]
            if outside & set(results):
                shown = [self.targets([name]) if name in outside else name for name in results]
                lines.append(f"{', '.join(shown)} = {text}")
            elif len(results) == 1:
                inside[results[0]] = text
            else:
                lines.append(f"{', '.join(results)} = {text}" if results else text)
        return "; ".join(lines)

    def call(self, call: Call, inside: dict[str, str]) -> str:
        target = call.target.removesuffix(".default")
        args = [self.arg(arg, inside) for arg in call.args]
        args += [f"{name}={self.arg(value, inside)}" for name, value in call.kwargs]
        return f"{target}({', '.join(args)})"

    def arg(self, arg: Arg, inside: dict[str, str]) -> str:
        match arg:
            case Ref(name):
                return inside.get(name, self.label(name))
            case Token(text):
                return text
            case tuple():
                return f"[{', '.join(self.arg(item, inside) for item in arg)}]"
            case Index():
                return str(arg)
            case _:
                return repr(arg)

    # -- stages -------------------------------------------------------------------------------------------
    def stages(self) -> list[str]:
        spec = self.kernel.spec
        if not isinstance(spec, Stages):
            return []
        pairs = [(stage, *self.stage(stage)) for stage in spec.stages]
        width = min(max(len(target) for _, target, _ in pairs), 24)
        lines = []
        for stage, target, body in pairs:
            place = "  in registers" if stage.target in spec.locals else ""
            lines.append(f"     {target:<{width}} {body}{place}")
        return lines

    def stage(self, stage: Stage) -> tuple[str, str]:
        sign = {None: "=", "add": "+="}.get(stage.accumulate, f"{stage.accumulate}=")
        condition = f"  where {conditions(stage.when)}" if stage.when else ""
        target = f"{self.label(stage.target)}[{_shape(stage.store)}]"
        return target, f"{sign} {self.expr(stage.body)}{condition}"

    def expr(self, expr: Expr, strength: int = 0) -> str:
        """Text, in parentheses where the surroundings bind more strongly."""
        text, own = self.bare(expr)
        return f"({text})" if own < strength else text

    def bare(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Const(value, _):
                text = _number(value)
                return text, _UNARY if text.startswith("-") else _CALL
            case IndexValue(index, _):
                return str(index), _CALL if len(index.terms) <= 1 else 5
            case Load():
                return self.load(expr)
            case Op("neg", (arg,)):
                return f"-{self.expr(arg, _UNARY)}", _UNARY
            case Op("logical_not", (arg,)):
                return f"not {self.expr(arg, 4)}", 3
            case Op(name, (left, right)) if name in _INFIX:
                sign, own = _INFIX[name]
                return f"{self.expr(left, own)} {sign} {self.expr(right, own + 1)}", own
            case Op(name, args):
                return f"{_SHORT.get(name, name)}({', '.join(map(self.expr, args))})", _CALL
            case Select(when, then, other):
                return f"{self.expr(then, 1)} if {conditions(when)} else {self.expr(other, 1)}", 0
            case Cast(dtype, arg):
                return f"{dtype}({self.expr(arg)})", _CALL
            case Reduce(monoid, axes, args, part, when):
                return self.reduce(monoid, axes, args, part, when), _CALL
            case Scan(monoid, axis, arg):
                return f"{_SCANS[monoid]}_{axis.name}({self.expr(arg)})", _CALL
            case Contract(axes, terms):
                products = [f"{self.expr(a, 7)} * {self.expr(b, 8)}" for a, b in terms]
                body = products[0] if len(products) == 1 else f"({' + '.join(products)})"
                return f"sum_{_bound(axes)} {body}", _CONTRACT
        raise IRError(f"not an expression: {expr!r}")

    def load(self, load: Load) -> tuple[str, int]:
        subscripts = [str(sub) if isinstance(sub, Index) else self.expr(sub) for sub in load.index]
        text = f"{self.label(load.buffer)}[{', '.join(subscripts)}]"
        if not load.when:
            return text, _CALL
        if self.checks_range_only(load):
            return f"{text} or {_number(load.other)}", 0
        return f"{text} if {conditions(load.when)} else {_number(load.other)}", 0

    def checks_range_only(self, load: Load) -> bool:
        """True where the predicates only say that subscripts are inside the buffer: padding."""
        shape = self.program.buffer(load.buffer).shape
        inside: set[Index] = set()
        for sub, extent in zip(load.index, shape, strict=True):
            if isinstance(sub, Index):
                inside |= {sub, extent - 1 - sub}
        return set(load.when) <= inside

    def reduce(
        self, monoid: str, axes: tuple[Axis, ...], args: tuple[Expr, ...], part: int, when: tuple[Index, ...]
    ) -> str:
        shown = ", ".join(map(self.expr, args)) + (f" where {conditions(when)}" if when else "")
        parts = MONOIDS[monoid].parts
        suffix = "" if len(parts) == 1 or parts[part] == "position" else f".{parts[part]}"
        return f"{monoid}_{_bound(axes)}({shown}){suffix}"


def _bound(axes: tuple[Axis, ...]) -> str:
    names = ",".join(axis.name for axis in axes)
    return names if len(axes) == 1 else f"{{{names}}}"


def _number(value: float | int | bool) -> str:
    text = repr(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def conditions(when: tuple[Index, ...]) -> str:
    """Predicates (an index that is >= 0) as comparisons with a plus sign on both sides."""
    return " and ".join(map(_condition, when))


def _condition(index: Index) -> str:
    constant = sum(coef for mono, coef in index.terms if not mono)
    more = Index(tuple((mono, coef) for mono, coef in index.terms if mono and coef > 0))
    less = Index(tuple((mono, -coef) for mono, coef in index.terms if mono and coef < 0))
    if not less.terms:
        return f"{more} >= {-constant}"
    if not more.terms:
        return f"{less} <= {constant}"
    return f"{more + constant} >= {less}" if constant > 0 else f"{more} >= {less - constant}"
