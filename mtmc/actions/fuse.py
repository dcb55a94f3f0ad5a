"""Fuse: two kernels become one, and what passed between them no longer goes through memory.

::

    k3 tile matmul  t3[m, n] = sum_k x[m, k] * fc.weight[n, k]
    k4 library      t4 = aten.relu(t3)
 ->
    k3 tile matmul  a[m, n]  = sum_k x[m, k] * fc.weight[n, k]      in registers
                    t4[m, n] = max(a[m, n], 0)

Three ways are tried, and legal is what some form matches: the consumer follows the producer on the producer's axes
(an epilogue, a normalisation after its statistics); an elementwise producer is recomputed inside the consumer's
loads, at any index map (a prologue, a view); two readers of the same buffer share one loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from mtmc.actions.action import Action
from mtmc.actions.regions import REGION, named, region_of, token
from mtmc.actions.rewriting import form_of, known, merged_lines, ordered, require, without_dead
from mtmc.data.hardware import Hardware
from mtmc.errors import IllegalAction, IRError
from mtmc.ir.align import align, covers, freshen, inline, is_pointwise, rename, stage_axes
from mtmc.ir.expr import Contract, Expr, Load, Stage, loads, map_loads, walk
from mtmc.ir.forms import Form, MatmulForm, RowForm, ScanForm
from mtmc.ir.index import Axis, Dim, Index
from mtmc.ir.program import Kernel, Program, Stages, Tile
from mtmc.ir.schedule import Schedule

KIND = "fuse"
_LINE = re.compile(rf"fuse ({REGION}) and ({REGION})")
_LARGEST_BODY = 400
"""Nodes of one stage's body: recomputing a producer at every load must not grow without end."""


def action(first: str, second: str) -> Action:
    return Action(KIND, (first, second))


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    """Every producer with each consumer, and neighbours among the readers of one buffer, by class."""
    found: dict[tuple[str, str], None] = {}
    plain = [k for k in program.kernels if isinstance(k.spec, Stages) and k.guard is None]
    readers: dict[str, list[Kernel]] = {}
    for kernel in plain:
        for name in kernel.reads:
            readers.setdefault(name, []).append(kernel)
    for kernel in plain:
        for name in kernel.writes:
            for consumer in readers.get(name, ()):
                if consumer.id != kernel.id:
                    found[region_of(program, kernel), region_of(program, consumer)] = None
        for name in kernel.reads:
            beside = readers[name]
            place = [k.id for k in beside].index(kernel.id)
            if place + 1 < len(beside):
                found[region_of(program, kernel), region_of(program, beside[place + 1])] = None
    for first, second in found:
        yield action(first, second)


def pairs(program: Program, first: tuple[Kernel, ...], second: tuple[Kernel, ...]) -> list[tuple[str, str]]:
    """The kernels of two classes that belong together, one partner each: by what passes between them, else by what
    both read."""
    result: list[tuple[str, str]] = []
    taken: set[str] = set()
    for linked in (lambda a, b: set(a.writes) & set(b.reads), lambda a, b: set(a.reads) & set(b.reads)):
        for a in first:
            partner = next((b for b in second if b.id not in taken | {a.id} and linked(a, b)), None)
            if a.id not in taken and partner is not None:
                result.append((a.id, partner.id))
                taken |= {a.id, partner.id}
        if result:
            break
    return result


def check(program: Program, action: Action) -> None:
    first, second = (program.kernel(region) for region in action.region)
    require(first.id != second.id, f"{first.id} ({first.note}) can't be fused with itself")
    for kernel in (first, second):
        known(program, kernel)
        require(kernel.guard is None, f"{kernel.id} ({kernel.note}) runs only as the full-range path")
    require(
        not set(second.writes) & set(first.reads),
        f"{second.id} ({second.note}) comes before {first.id} ({first.note}): name the producer first",
    )


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    first, second = (program.kernel(region) for region in action.region)
    fused, stays = _fused(program, first, second, hardware)
    replaced: dict[str, Kernel | None] = {second.id: fused} if stays else {first.id: fused, second.id: None}
    for kernel in program.kernels:  # the full-range path of the producer takes the same step
        if kernel.guard is not None and set(kernel.writes) & set(first.writes) & set(second.reads):
            require(not stays, f"{kernel.id} replaces results of {first.id} that are needed elsewhere, too")
            replaced[kernel.id], _ = _fused(program, kernel, second, hardware)
    kernels = (replaced.get(kernel.id, kernel) for kernel in program.kernels)
    result = ordered(replace(program, kernels=tuple(k for k in kernels if k is not None)))
    return without_dead(result) if stays else result.pruned()


def _fused(program: Program, first: Kernel, second: Kernel, hardware: Hardware) -> tuple[Kernel, bool]:
    """The first way of fusing that gives a kernel of some form, and whether the producer stays for others.

    Raises:
        IllegalAction: no way does; the message has the reason of each.
    """
    shared = tuple(name for name in first.writes if name in second.reads)
    needed = frozenset(name for name in first.writes if _needed(program, name, first, second))
    count = sum(load.buffer in shared for load in _loads_of(known(program, second).stages))
    # One load: recompute in place. Several: keep the value in a local, computed once.
    ways: tuple[_Way, ...] = (_recompute, _follow) if count == 1 else (_follow, _recompute)
    reasons: list[str] = []
    for way in (*ways, _recompute_beside) if shared else (_follow,):
        try:
            kernel = _joined(first, second, way(program, first, second, shared, needed))
            schedule = _schedule(program, first, second, kernel, hardware)
        except IRError as error:
            reasons.append(error.message)
            continue
        stays = way is _recompute_beside
        return replace(kernel, id=second.id if stays else first.id, impl=Tile(schedule)), stays
    raise IllegalAction(
        f"{first.id} ({first.note}) and {second.id} ({second.note}) can't be one kernel: "
        + "; ".join(dict.fromkeys(reasons))
    )


_Way = Callable[[Program, Kernel, Kernel, tuple[str, ...], frozenset[str]], Stages]


def _needed(program: Program, name: str, first: Kernel, second: Kernel) -> bool:
    """True if somebody beside the two reads the buffer."""
    others = (kernel for kernel in program.kernels if kernel.id not in (first.id, second.id))
    return name in program.live_out or any(name in k.reads or name == k.guard for k in others)


def _joined(first: Kernel, second: Kernel, spec: Stages) -> Kernel:
    front = first.spec.stages if isinstance(first.spec, Stages) else ()
    product = any(isinstance(node, Contract) for stage in front for node in walk(stage.body))
    return replace(
        first,
        spec=spec,
        op=f"{first.op}+{second.op}",
        calls=first.calls + second.calls if first.calls and second.calls else (),
        lines=merged_lines(first, second),
        rounding=first.rounding if product else second.rounding,
    )


# ---- the consumer follows on the producer's axes ------------------------------------------------------------


def _follow(program: Program, first: Kernel, second: Kernel, shared: tuple[str, ...], needed: frozenset[str]) -> Stages:
    """The producer's stages, then the consumer's on the producer's axes."""
    ahead = known(program, first)
    behind = known(program, second)
    stages = freshen(behind.stages, stage_axes(ahead.stages))
    stores: dict[str, tuple[Index, ...]] = {}
    for stage in ahead.stages:
        require(
            stage.target not in shared or (stage.target not in stores and not stage.accumulate),
            f"'{stage.target}' is put together from several stages",
        )
        stores[stage.target] = stage.store
    places = _place_by_values(program, ahead.stages, stages, stores, shared)
    require(bool(shared) or bool(places), f"{first.id} and {second.id} read nothing at the same points")
    places = _place_by_extent(ahead.stages, stages, places)
    require(
        covers(places, stage_axes(stages)),
        f"{second.id} ({second.note}) runs over other points than {first.id} ({first.note})",
    )
    moved = tuple(_reread(rename(stage, places), shared, stores) for stage in stages)
    inner = tuple(name for name in shared if name not in needed)
    return Stages(ahead.stages + moved, ahead.locals + behind.locals + inner)


def _loads_of(stages: tuple[Stage, ...]) -> list[Load]:
    return [load for stage in stages for load in loads(stage.body)]


_Placed = dict[Axis | Dim, Index]


def _place_by_values(
    program: Program,
    ahead: tuple[Stage, ...],
    behind: tuple[Stage, ...],
    stores: dict[str, tuple[Index, ...]],
    shared: tuple[str, ...],
) -> _Placed:
    """Axes of the consumer lie where the producer stores what they read; where that does not tell (a mean that is
    read at ``c // 4``), first where both read the same input. Raises IRError if a shared value is elsewhere."""
    places: _Placed = {}
    waiting: list[tuple[Load, tuple[Index, ...]]] = []
    for load in _loads_of(behind):
        if load.buffer in shared:
            require(not load.when, f"'{load.buffer}' is read with a predicate, not as it was written")
            waiting.append((load, _static(load)))
    while waiting:
        left: list[tuple[Load, tuple[Index, ...]]] = []
        for load, index in waiting:
            try:
                places = align(index, stores[load.buffer], program.buffer(load.buffer).shape, places)
            except IRError as error:
                left.append((load, index))
                reason = error
        before = dict(places)
        places = _place_by_reads(program, ahead, behind, places)
        if left and len(left) == len(waiting) and places == before:
            raise reason
        waiting = left
    return _place_by_reads(program, ahead, behind, places)


def _static(load: Load) -> tuple[Index, ...]:
    index = tuple(sub for sub in load.index if isinstance(sub, Index))
    require(len(index) == len(load.index), f"'{load.buffer}' is gathered at computed positions")
    return index


def _place_by_reads(program: Program, ahead: tuple[Stage, ...], behind: tuple[Stage, ...], places: _Placed) -> _Placed:
    """Axes that index a buffer which both read lie where the producer reads it."""
    for mine in _loads_of(behind):
        for theirs in _loads_of(ahead):
            if theirs.buffer != mine.buffer:
                continue
            try:
                places = align(_static(mine), _static(theirs), program.buffer(mine.buffer).shape, places)
            except IRError:
                continue
            break
    return places


def _place_by_extent(ahead: tuple[Stage, ...], behind: tuple[Stage, ...], places: _Placed) -> _Placed:
    """Axes that nothing has placed yet take the producer's unused axes of the same extent, in order."""
    used = {axis for value in places.values() for axis in value.axes}
    free = [axis for axis in stage_axes(ahead) if axis not in used]
    placed = dict(places)
    for axis in stage_axes(behind):
        if axis in placed:
            continue
        partner = next((other for other in free if other.extent == axis.extent), None)
        if partner is not None:
            free.remove(partner)
            placed[axis] = Index.of(partner)
    return placed


def _reread(stage: Stage, shared: tuple[str, ...], stores: dict[str, tuple[Index, ...]]) -> Stage:
    """The loads of shared buffers with exactly the index at which they were stored."""

    def convert(load: Load) -> Expr:
        return replace(load, index=stores[load.buffer]) if load.buffer in shared else load

    return replace(stage, body=map_loads(stage.body, convert))


# ---- the producer is recomputed inside the consumer's loads -------------------------------------------------


def _recompute(
    program: Program, first: Kernel, second: Kernel, shared: tuple[str, ...], needed: frozenset[str]
) -> Stages:
    """The consumer's stages with the producer's values in place of its loads."""
    names = ", ".join(sorted(needed))
    require(not needed, f"others need {names} of {first.id} ({first.note})")
    return _inlined(program, first, second)


def _recompute_beside(
    program: Program, first: Kernel, second: Kernel, shared: tuple[str, ...], needed: frozenset[str]
) -> Stages:
    """The same where the producer's values are needed elsewhere, too: it stays a kernel of its own."""
    require(bool(needed), f"nothing else needs the results of {first.id} ({first.note})")
    return _inlined(program, first, second)


def _inlined(program: Program, first: Kernel, second: Kernel) -> Stages:
    ahead, behind = known(program, first), known(program, second)
    require(
        all(is_pointwise(stage.body) for stage in ahead.stages),
        f"{first.id} ({first.note}) is not elementwise, so it can't be recomputed where it is read",
    )
    stages = behind.stages
    for target in reversed(dict.fromkeys(stage.target for stage in ahead.stages)):
        writers = tuple(stage for stage in ahead.stages if stage.target == target)
        shape = program.buffer(target).shape
        stages = tuple(
            inline(writers, stage, shape, program.dtype) if target in stage.reads else stage for stage in stages
        )
        for stage in stages:
            size = sum(1 for _ in walk(stage.body))
            require(
                size <= _LARGEST_BODY,
                f"recomputing {first.id} ({first.note}) at every load would take {size} nodes",
            )
    return Stages(stages, behind.locals)


# ---- schedules ----------------------------------------------------------------------------------------------


def _schedule(program: Program, first: Kernel, second: Kernel, kernel: Kernel, hardware: Hardware) -> Schedule:
    """The default of the fused kernel's form, or the schedule that somebody chose for the part of that form."""
    form = form_of(program, kernel)
    default = form.default(program, hardware)
    for part in (first, second):
        chosen = _chosen(program, part, form, hardware)
        if chosen is not None:
            return chosen
    return default


def _chosen(program: Program, part: Kernel, form: Form, hardware: Hardware) -> Schedule | None:
    """The schedule of a part if it is of the same form over the same loop and not just its default."""
    if not isinstance(part.impl, Tile) or part.impl.schedule.form != form.name:
        return None
    before = form_of(program, part)
    if part.impl.schedule == before.default(program, hardware):
        return None
    return part.impl.schedule if _loop(before) == _loop(form) else None


def _loop(form: Form) -> tuple[Index, ...]:
    """The extents that a schedule's tile depends on."""
    match form:
        case RowForm():
            axes = form.inner
        case MatmulForm():
            axes = form.k
        case ScanForm():
            axes = (form.axis,)
        case _:
            axes = ()
    return tuple(axis.extent for axis in axes)


def describe(program: Program, action: Action) -> str:
    first, second = (named(program, region) for region in action.region)
    return f"fuse {first} and {second}"


def parse(line: str) -> Action | None:
    found = _LINE.fullmatch(line)
    return action(token(found[1]), token(found[2])) if found else None
