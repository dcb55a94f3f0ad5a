"""What several actions need to rewrite a Program: new names, default schedules, an order that respects the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from mtmc.data.hardware import Hardware
from mtmc.errors import IllegalAction, IRError
from mtmc.ir.expr import Expr, Load, map_loads, rebuild
from mtmc.ir.forms import Form, match
from mtmc.ir.index import Index, nonnegative
from mtmc.ir.program import Kernel, Opaque, Program, Source, Stages, Tile
from mtmc.ir.schedule import Schedule


def require(condition: bool, message: str) -> None:
    """Raises IllegalAction with the reason unless the condition holds."""
    if not condition:
        raise IllegalAction(message)


def known(program: Program, kernel: Kernel) -> Stages:
    """The kernel's stages; IllegalAction where the compiler coder doesn't know or doesn't own what it computes."""
    if not isinstance(kernel.spec, Stages):
        raise IllegalAction(f"{kernel.id} ({kernel.note}) is opaque: only PyTorch knows what it computes")
    require(not isinstance(kernel.impl, Source), f"{kernel.id} ({kernel.note}) is somebody's source text")
    return kernel.spec


def schedule_of(kernel: Kernel) -> Schedule:
    """The schedule of a generated kernel; IllegalAction for any other."""
    if not isinstance(kernel.impl, Tile):
        raise IllegalAction(f"{kernel.id} ({kernel.note}) has no schedule yet; tile it first")
    return kernel.impl.schedule


def form_of(program: Program, kernel: Kernel) -> Form:
    """:func:`mtmc.ir.forms.match`, kept in the kernel as ``functools.cached_property`` would, for its buffers as they
    are: a search asks for the same kernels again and again."""
    names = (*kernel.reads, *kernel.writes, *(kernel.spec.locals if isinstance(kernel.spec, Stages) else ()))
    buffers = tuple(program.buffer(name) for name in names)
    kept = vars(kernel).get("_matched")
    if kept is None or len(kept[0]) != len(buffers) or any(a is not b for a, b in zip(kept[0], buffers, strict=True)):
        try:
            found: Form | IRError = match(program, kernel)
        except IRError as error:
            found = error
        kept = vars(kernel)["_matched"] = (buffers, found)
    if isinstance(kept[1], IRError):
        raise kept[1]
    return cast(Form, kept[1])


def scheduled(program: Program, kernel: Kernel, hardware: Hardware) -> Kernel:
    """The kernel as generated code with its form's default schedule. Raises IRError where no form fits."""
    return replace(kernel, impl=Tile(form_of(program, kernel).default(program, hardware)))


def reschedule(program: Program, kernel: Kernel, schedule: Schedule) -> Program:
    return program.replace_kernel(kernel.id, replace(kernel, impl=Tile(schedule)))


def merged_lines(*kernels: Kernel) -> tuple[int, ...]:
    return tuple(sorted({line for kernel in kernels for line in kernel.lines}))


class Names:
    """Fresh buffer and kernel names for one rewrite."""

    def __init__(self, program: Program) -> None:
        self._taken = set(program.table) | {kernel.id for kernel in program.kernels}
        for kernel in program.kernels:  # names inside calls must not be captured by a new buffer
            self._taken |= {result for call in kernel.calls for result in call.results if result}

    def fresh(self, stem: str) -> str:
        """``stem`` with the first free number: ``part0``."""
        number = next(n for n in range(len(self._taken) + 1) if f"{stem}{n}" not in self._taken)
        self._taken.add(f"{stem}{number}")
        return f"{stem}{number}"


def replace_node(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with every occurrence of one node replaced."""
    if expr == old:
        return new
    return rebuild(expr, lambda child: replace_node(child, old, new))


def limited(expr: Expr, bounds: Sequence[Index]) -> Expr:
    """The expression with its loads predicated, for points where an index would leave its buffer."""
    needed = tuple(bound for bound in bounds if not nonnegative(bound))

    def convert(load: Load) -> Load:
        return replace(load, when=(*load.when, *(bound for bound in needed if bound not in load.when)))

    return map_loads(expr, convert) if needed else expr


def ordered(program: Program) -> Program:
    """The kernels in an order in which everything is written before it is read: the present one where possible.

    A guarded kernel comes after the kernel whose results it replaces, and before everybody who reads them.

    Raises:
        IllegalAction: there is no such order; the message names the kernels that wait for each other.
    """
    kernels = program.kernels
    writers: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        for name in kernel.writes:
            writers.setdefault(name, []).append(number)
    after: list[set[int]] = []
    random: int | None = None
    for number, kernel in enumerate(kernels):
        needs: set[int] = set()
        for name in (*kernel.reads, *((kernel.guard,) if kernel.guard else ())):
            needs.update(writers.get(name, ()))
        for name in kernel.writes:
            for other in writers[name]:
                first = kernels[other].guard is None, -other
                if other != number and first > (kernel.guard is None, -number):
                    needs.add(other)
        if isinstance(kernel.spec, Opaque) and "random" in kernel.spec.effects:
            needs.update(() if random is None else (random,))  # draws keep their order
            random = number
        after.append(needs - {number})
    order: list[int] = []
    placed: set[int] = set()
    waiting = list(range(len(kernels)))
    while waiting:
        ready = next((number for number in waiting if after[number] <= placed), None)
        if ready is None:
            stuck = ", ".join(kernels[number].id for number in waiting)
            raise IllegalAction(f"{stuck} would wait for each other's results")
        waiting.remove(ready)
        placed.add(ready)
        order.append(ready)
    if order == list(range(len(kernels))):
        return program
    return replace(program, kernels=tuple(kernels[number] for number in order))


def without_dead(program: Program) -> Program:
    """Drops generated and library kernels whose results nobody needs, and what becomes unused with them."""
    kernels = list(program.kernels)
    changed = True
    while changed:
        changed = False
        needed = set(program.live_out)
        for kernel in kernels:
            needed |= {*kernel.reads, *((kernel.guard,) if kernel.guard else ())}
            for call in kernel.calls:
                needed |= set(call.refs()) - {r for c in kernel.calls for r in c.results if r}
        for kernel in kernels:
            if isinstance(kernel.spec, Stages) and not needed & set(kernel.writes):
                kernels.remove(kernel)
                changed = True
                break
    return replace(program, kernels=tuple(kernels)).pruned()


__all__ = [
    "IRError", "Names", "form_of", "known", "limited", "merged_lines", "ordered", "replace_node", "require",
    "reschedule", "schedule_of", "scheduled", "without_dead",
]  # fmt: skip
