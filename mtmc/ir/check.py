"""The rules that every Program keeps, as one table: what must hold, and how a Program breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from mtmc.errors import IRError
from mtmc.ir.cost import sizes
from mtmc.ir.expr import (
    Contract,
    Expr,
    Reduce,
    Scan,
    Select,
    Stage,
    children,
    dtype_of,
    free_axes,
    loads,
    walk,
)
from mtmc.ir.footprint import of_map, points
from mtmc.ir.index import Axis, FloorDiv, Index, Mod, nonnegative
from mtmc.ir.program import Kernel, Opaque, Program, Role, Stages

ProgramRule: TypeAlias = Callable[[Program], Iterator[str]]
KernelRule: TypeAlias = Callable[["_Facts", Kernel], Iterator[str]]


def check(program: Program) -> None:
    """Raises IRError, naming kernel and rule, for the first rule that the Program breaks."""
    for problem in problems(program):
        raise IRError(problem)


def problems(program: Program) -> Iterator[str]:
    """Every broken rule, as a sentence. Later rules may rely on earlier ones, so the first is the one to
    fix."""
    for name, rule in PROGRAM_RULES.items():
        for problem in rule(program):
            yield f"the program breaks the rule '{name}': {problem}"
    facts = _Facts(program)
    for kernel in program.kernels:
        for name, kernel_rule in KERNEL_RULES.items():
            for problem in kernel_rule(facts, kernel):
                yield f"{kernel.id} ({kernel.note}) breaks the rule '{name}': {problem}"
                return  # what follows would only repeat it


class _Facts:
    """What rules about one kernel need to know about the others, found once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.dims = sizes(program)
        self.position = {kernel.id: number for number, kernel in enumerate(program.kernels)}
        self.writers: dict[str, list[Kernel]] = {}
        self.users: dict[str, list[str]] = {}
        for kernel in program.kernels:
            for name in dict.fromkeys(stage.target for stage in _stages(kernel)) or kernel.writes:
                self.writers.setdefault(name, []).append(kernel)
            for name in {*kernel.reads, *([kernel.guard] if kernel.guard else [])}:
                self.users.setdefault(name, []).append(kernel.id)

    def defined_before(self, name: str, kernel: Kernel) -> bool:
        writers = self.writers.get(name)
        first = self.position[writers[0].id] if writers else len(self.position)
        return self.program.buffer(name).role is not Role.TEMP or first < self.position[kernel.id]


# ---- the program -------------------------------------------------------------------------------------------


def _unique_names(program: Program) -> Iterator[str]:
    for kind, names in (
        ("buffer", [buffer.name for buffer in program.buffers]),
        ("kernel", [kernel.id for kernel in program.kernels]),
    ):
        for name in (name for name, count in Counter(names).items() if count > 1):
            yield f"two {kind}s are called '{name}'"


def _ranks(program: Program) -> Iterator[str]:
    for buffer in program.buffers:
        if len(buffer.shape) != len(buffer.strides):
            yield f"'{buffer.name}' has {len(buffer.shape)} extents and {len(buffer.strides)} strides"


def _results_exist(program: Program) -> Iterator[str]:
    made = {name for kernel in program.kernels for name in kernel.writes}
    for name in (*program.outputs, *(update.value for update in program.updates)):
        if name not in program.table:
            yield f"the result '{name}' is not a buffer"
        elif program.buffer(name).role is Role.TEMP and name not in made:
            yield f"no kernel writes the result '{name}'"
    for update in program.updates:
        if update.state not in program.table or program.buffer(update.state).role is not Role.STATE:
            yield f"'{update.state}' is updated but is not a state"


PROGRAM_RULES: dict[str, ProgramRule] = {
    "names are unique": _unique_names,
    "every extent has a stride": _ranks,
    "results exist": _results_exist,
}


# ---- each kernel -------------------------------------------------------------------------------------------


def _buffers_exist(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    named = [*kernel.reads, *kernel.writes, *([kernel.guard] if kernel.guard else [])]
    if isinstance(kernel.spec, Stages):
        named += kernel.spec.locals
    for name in named:
        if name not in facts.program.table:
            yield f"'{name}' is not a buffer"


def _defined_before_use(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    needed = [*kernel.reads, *([kernel.guard, *kernel.writes] if kernel.guard else [])]
    for name in needed:
        if not facts.defined_before(name, kernel):
            yield f"'{name}' is used before a kernel writes it"


def _writes_temporaries(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    for name in kernel.writes:
        if facts.program.buffer(name).role is not Role.TEMP:
            yield f"it writes '{name}', which is {facts.program.buffer(name).role}: use an update"


def _locals_stay_inside(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    inside = kernel.spec.locals if isinstance(kernel.spec, Stages) else ()
    targets = {stage.target for stage in _stages(kernel)}
    for name in inside:
        users = [user for user in facts.users.get(name, ()) if user != kernel.id]
        if users or name in facts.program.live_out:
            yield f"its local '{name}' is used by {', '.join(users) or 'the results'}"
        if name not in targets or name in kernel.reads:
            yield f"its local '{name}' is read before a stage of the kernel writes it"


def _opaque_calls(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    made: set[str] = set()
    for call in kernel.calls:
        for name in call.refs():
            if name not in made and name not in facts.program.table:
                yield f"{call.target} takes '{name}', which is neither a buffer nor an earlier result"
        made |= {name for name in call.results if name}
    if isinstance(kernel.spec, Opaque):
        if not kernel.calls:
            yield "it is opaque and calls nothing"
        for name in kernel.exports:
            if name not in made:
                yield f"it exports '{name}', which none of its calls returns"


def _axes_in_scope(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    for stage in _stages(kernel):
        scope = frozenset(stage.axes)
        for name, axes in (
            ("body", free_axes(stage.body)),
            ("store", frozenset(axis for index in (*stage.store, *stage.when) for axis in index.axes)),
        ):
            for axis in sorted(axes - scope, key=lambda axis: axis.name):
                yield f"the {name} of '{stage.target}' uses axis {axis.name}, which is not among its axes"
        for scan, outer in _scans(stage.body, scope):
            if scan.axis not in outer:
                yield f"'{stage.target}' scans along {scan.axis.name}, which is not among its axes"


def _scans(expr: Expr, scope: frozenset[Axis]) -> Iterator[tuple[Scan, frozenset[Axis]]]:
    if isinstance(expr, Scan):
        yield expr, scope
    inner = scope | frozenset(expr.axes) if isinstance(expr, Reduce | Contract) else scope
    for child in children(expr):
        yield from _scans(child, inner)


def _axis_names(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    known: dict[str, Axis] = {}
    for stage in _stages(kernel):
        for axis in (*stage.axes, *sorted(_bound(stage.body), key=lambda axis: axis.name)):
            if known.setdefault(axis.name, axis) != axis:
                yield f"axis {axis.name} has extents {known[axis.name].extent} and {axis.extent}"


def _bound(expr: Expr) -> set[Axis]:
    return {axis for node in walk(expr) if isinstance(node, Reduce | Contract) for axis in node.axes}


def _indices_fit(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    for stage in _stages(kernel):
        yield from _fits(facts.program, stage.target, stage.store, bool(stage.when))
        guarded = bool(stage.when) or any(isinstance(node, Select | Reduce) and node.when for node in walk(stage.body))
        for load in loads(stage.body):
            yield from _fits(facts.program, load.buffer, load.index, guarded or bool(load.when))


def _fits(program: Program, name: str, index: tuple[Index | Expr, ...], guarded: bool) -> Iterator[str]:
    shape = program.buffer(name).shape
    if len(index) != len(shape):
        yield f"'{name}' has {len(shape)} dimensions and is indexed with {len(index)}"
        return
    for sub, extent in zip(index, shape, strict=True):
        if guarded or not isinstance(sub, Index) or any(isinstance(a, FloorDiv | Mod) for a in sub._atoms()):
            continue  # bounds of nested divisions are not tight, so nothing is proven
        if not nonnegative(sub.lower) or not nonnegative(extent - 1 - sub.upper):
            yield f"index {sub} of '{name}' reaches {sub.lower} to {sub.upper} of an extent of {extent}"


def _stores_once(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    for stage in _stages(kernel):
        if stage.accumulate not in (None, "add", "max"):
            yield f"'{stage.target}' accumulates by '{stage.accumulate}'; add and max exist"
        if stage.accumulate or stage.when:
            continue
        reached = of_map(stage.store, facts.program.buffer(stage.target).shape, (), facts.dims)
        if reached.at_least == reached.at_most < points(stage.axes, facts.dims):
            yield f"two points of '{stage.target}'[{', '.join(map(str, stage.store))}] write one element"


def _stores_cover(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    for name in dict.fromkeys(stage.target for stage in _stages(kernel)):
        writers = facts.writers[name]
        stages = [stage for k in writers for stage in _stages(k) if stage.target == name]
        if any(isinstance(k.spec, Opaque) for k in writers) or any(stage.accumulate for stage in stages):
            continue
        buffer = facts.program.buffer(name)
        total = sum(of_map(stage.store, buffer.shape, stage.when, facts.dims).at_most for stage in stages)
        if total < int(buffer.numel.evaluate(facts.dims)):
            yield f"of '{name}' only {total} of {buffer.numel.evaluate(facts.dims)} elements are written"


def _types(facts: _Facts, kernel: Kernel) -> Iterator[str]:
    if kernel.guard and facts.program.buffer(kernel.guard).numel.constant != 1:
        yield f"its guard '{kernel.guard}' has more than one element"
    for stage in _stages(kernel):
        target, value = facts.program.dtype(stage.target), dtype_of(stage.body, facts.program.dtype)
        if value.is_float and not target.is_float:
            yield f"'{stage.target}' is {target} and its value is {value}: say how to round with a cast"
        for load in loads(stage.body):
            for sub in load.index:
                if not isinstance(sub, Index) and not dtype_of(sub, facts.program.dtype).is_integer:
                    yield f"'{load.buffer}' is gathered at a {dtype_of(sub, facts.program.dtype)}"


def _stages(kernel: Kernel) -> tuple[Stage, ...]:
    return kernel.spec.stages if isinstance(kernel.spec, Stages) else ()


KERNEL_RULES: dict[str, KernelRule] = {
    "calls refer to what exists": _opaque_calls,
    "buffers exist": _buffers_exist,
    "locals stay inside": _locals_stay_inside,
    "buffers are written before use": _defined_before_use,
    "only temporaries are written": _writes_temporaries,
    "axes are in scope": _axes_in_scope,
    "an axis name means one axis": _axis_names,
    "indices fit the buffer": _indices_fit,
    "an element is stored once": _stores_once,
    "stores cover the buffer": _stores_cover,
    "types agree": _types,
}

__all__ = ["KERNEL_RULES", "PROGRAM_RULES", "check", "problems"]
