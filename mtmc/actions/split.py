"""Split: cut a reduction into partial results, one for each of several programs, and a final one.

::

    k7 tile row     out[] = sum over k < 1e9 of x[k]
 ->
    k8 tile row     p[s]  = sum over j < ceil(1e9 / 16) of x[s * ceil(1e9 / 16) + j]       for s < 16
    k7 tile row     out[] = sum over s < 16 of p[s]

What a row keeps beside its reductions follows in a kernel of its own, and a matrix product is split along K.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mtmc.actions.action import Action
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import Names, form_of, known, limited, ordered, replace_node, require, scheduled
from mtmc.data.hardware import Hardware
from mtmc.errors import IllegalAction, IRError
from mtmc.ir.align import Places, inline, is_pointwise, rebind, stage_axes
from mtmc.ir.expr import Const, Contract, Expr, IndexValue, Load, Op, Reduce, Stage, dtype_of, rebuild, walk
from mtmc.ir.forms import MatmulForm, RowForm
from mtmc.ir.forms.form import extent, typical
from mtmc.ir.index import ZERO, Axis, Index, delinearize, linearize, nonnegative
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import Buffer, Kernel, Program, Stages
from mtmc.ir.types import DType

KIND = "split"
PARTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LINE = re.compile(rf"split the reduction of ({REGION}) across (\d+) programs")
_SMALLEST = 256
"""Elements that each program should still reduce."""


def action(region: str, parts: int) -> Action:
    return Action(KIND, (region,), (("parts", parts),))


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    """Where the grid leaves the card idle: at most four counts around the one that fills it."""
    for region, kernel in representatives(program):
        best = advised(program, kernel, hardware)
        if best is None:
            continue
        for parts in (best // 4, best // 2, best, best * 2, best * 4):
            if parts in PARTS:
                yield action(region, parts)


def advised(program: Program, kernel: Kernel, hardware: Hardware) -> int | None:
    """The number of parts that fills the card a few times; None where the grid already does, or for small work."""
    try:
        known(program, kernel)
        form = form_of(program, kernel)
    except IRError:
        return None
    if kernel.guard is not None:
        return None
    if isinstance(form, MatmulForm):
        batch, m, n, k = form.sizes()
        programs, length, target = batch * -(-m // 128) * -(-n // 128), k // 4, hardware.sms
    elif isinstance(form, RowForm):
        rows, length = typical(extent(form.kept)), typical(extent(form.inner))
        programs = -(-rows // 64) if form.column_major else rows
        length, target = (length // 16 * 64 if form.column_major else length), 4 * hardware.sms
        if programs * length < 2**18:
            return None
    else:
        return None
    wanted = min(target // programs, length // (4 * _SMALLEST), PARTS[-1])
    return 1 << (wanted.bit_length() - 1) if wanted >= 2 else None


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    known(program, kernel)
    require(kernel.guard is None, f"{kernel.id} ({kernel.note}) runs only as the full-range path")
    require(2 <= action.number("parts") <= 4096, f"{action.number('parts')} programs: it takes 2 to 4096")


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    form = form_of(program, kernel)
    pieces = _Pieces(program)
    if isinstance(form, MatmulForm):
        _split_product(pieces, kernel, form, action.number("parts"))
    else:
        spec = known(program, kernel)
        if isinstance(form, RowForm):  # contractions written as sums
            spec = replace(spec, stages=form.stages)
        require(isinstance(form, RowForm), f"{kernel.id} ({kernel.note}) is a {form.name} kernel: nothing to split")
        front = isinstance(form, RowForm) and form.column_major
        _split_rows(pieces, replace(kernel, spec=spec), action.number("parts"), front)
    kernels = [scheduled(pieces.program, piece, hardware) for piece in pieces.kernels]
    return ordered(pieces.program.replace_kernel(kernel.id, *kernels))


class _Pieces:
    """The kernels that replace one, and the Program with the buffers that they need."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = Names(program)
        self.kernels: list[Kernel] = []

    def partial(self, body: Expr, axes: tuple[Axis, ...]) -> tuple[Stage, Load]:
        """A stage that stores ``body`` into a new buffer over ``axes``, and the load that reads it back."""
        dtype = dtype_of(body, self.program.dtype)
        buffer = Buffer.temp(self.names.fresh("part"), dtype, tuple(axis.extent for axis in axes))
        self.program = replace(self.program, buffers=(*self.program.buffers, buffer))
        index = tuple(Index.of(axis) for axis in axes)
        return Stage(axes, buffer.name, index, body), Load(buffer.name, index)


@dataclass(frozen=True)
class _Cut:
    """How reduced axes are divided: ``part`` numbers the parts, ``inner`` runs inside one, ``places`` puts the old
    axes on these, and ``bounds`` are negative beyond the last element."""

    part: Axis
    inner: tuple[Axis, ...]
    places: Places
    bounds: tuple[Index, ...]

    @staticmethod
    def of(axes: tuple[Axis, ...], parts: int, taken: tuple[Axis, ...]) -> _Cut:
        names = {axis.name for axis in taken}
        s_name, j_name = (next(n for n in (c, *(f"{c}{i}" for i in range(99))) if n not in names) for c in "sj")
        part = Axis(s_name, Index.of(parts))
        # The fewest leading axes that the parts divide evenly; else all of them, with a bound.
        count = next((n for n in range(1, len(axes)) if extent(axes[:n]) % parts == ZERO), len(axes))
        front, rest = axes[:count], axes[count:]
        total = extent(front)
        each = (total + parts - 1) // parts
        inner = Axis(j_name, each)
        position = Index.of(part) * each + inner
        bound = total - 1 - position
        bounds = () if nonnegative(bound) else (bound,)
        digits = (position,) if count == 1 else delinearize(position, [axis.extent for axis in front])
        return _Cut(part, (inner, *rest), dict(zip(front, digits, strict=True)), bounds)


# ---- rows ---------------------------------------------------------------------------------------------------


def _split_rows(pieces: _Pieces, kernel: Kernel, parts: int, front: bool) -> None:
    """Splits the reductions that wait for no other one; what is left becomes a further kernel, split in turn.

    ``front``: the parts are the slowest axis of the partial results, so that kept axes stay contiguous.
    """
    spec = known(pieces.program, kernel)
    reductions = [node for stage in spec.stages for node in walk(stage.body) if isinstance(node, Reduce)]
    if not reductions:
        pieces.kernels.append(kernel)
        return
    _check_rows(kernel, spec, reductions, parts)
    cut = _Cut.of(reductions[0].axes, parts, stage_axes(spec.stages))
    partial: dict[tuple[Reduce, tuple[Axis, ...]], tuple[Load, ...]] = {}
    made: dict[str, Stage] = {}
    early: list[Stage] = []
    final: list[Stage] = []
    rest: list[Stage] = []
    for stage in spec.stages:
        nodes = [node for node in walk(stage.body) if isinstance(node, Reduce)]
        opened = [_opened(pieces.program, node, made) for node in nodes]
        shell = stage.body
        for node in nodes:
            shell = replace_node(shell, node, Const(0, DType.F32))
        waits = {name for name in replace(stage, body=shell).reads if name in made} - {s.target for s in final}
        if set(stage.axes) & set(reductions[0].axes) or waits or None in opened:
            rest.append(stage)
        else:
            body = stage.body
            for node, wide in zip(nodes, opened, strict=True):
                assert wide is not None
                key = replace(wide, part=0), stage.axes
                if key not in partial:
                    stages, partial[key] = _partials(pieces, wide, stage.axes, cut, front)
                    early += stages
                body = replace_node(body, node, Reduce(node.monoid, (cut.part,), partial[key], node.part))
            final.append(replace(stage, body=body))
        made[stage.target] = stage
    require(bool(early), f"{kernel.id} ({kernel.note}) has no reduction that can come first")
    finished = {stage.target for stage in final}
    inside = finished - {name for stage in rest for name in stage.reads}
    local = tuple(name for name in spec.locals if name in inside)
    names, op = pieces.names, kernel.op
    last = names.fresh("k") if rest else kernel.id
    pieces.kernels += [
        replace(kernel, id=names.fresh("k"), op=f"partial {op}", spec=Stages(tuple(early)), calls=()),
        replace(kernel, id=last, op=f"final {op}", spec=Stages(tuple(final), local), calls=()),
    ]
    if rest:
        left = tuple(name for name in spec.locals if name not in finished)
        _split_rows(pieces, replace(kernel, spec=Stages(tuple(rest), left), calls=()), parts, front)


def _check_rows(kernel: Kernel, spec: Stages, reductions: list[Reduce], parts: int) -> None:
    where = f"{kernel.id} ({kernel.note})"
    require(
        all(set(node.axes) == set(reductions[0].axes) for node in reductions),
        f"{where} reduces over different axes in different stages",
    )
    size = extent(reductions[0].axes).constant
    require(size is None or size >= parts, f"{where}: {size} elements can't be split across {parts} programs")
    targets = [stage.target for stage in spec.stages]
    require(len(set(targets)) == len(targets), f"{where} writes one buffer in several stages")
    require(not any(stage.accumulate for stage in spec.stages), f"{where} accumulates into its results already")


def _opened(program: Program, node: Reduce, made: dict[str, Stage]) -> Reduce | None:
    """The reduction with elementwise values of its own kernel recomputed inside; None if it waits for another one."""
    stage = Stage((), "", (), node)
    for name in reversed(list(made)):
        if name in stage.reads and is_pointwise(made[name].body):
            stage = inline((made[name],), stage, program.buffer(name).shape, program.dtype)
    assert isinstance(stage.body, Reduce)
    return None if any(name in made for name in stage.reads) else stage.body


def _partials(
    pieces: _Pieces, node: Reduce, kept: tuple[Axis, ...], cut: _Cut, front: bool
) -> tuple[list[Stage], tuple[Load, ...]]:
    """The stages that compute every component of one reduction in each part, and the loads of the components."""
    monoid = MONOIDS[node.monoid]
    args = node.args
    if len(args) < monoid.arity and node.monoid in ("argmax", "argmin"):
        # Positions count from the start of the whole reduction, not of a part.
        args = (*args, IndexValue(linearize(node.axes, [axis.extent for axis in node.axes])))
    args = tuple(limited(rebind(arg, cut.places), cut.bounds) for arg in args)
    when = (*(bound.substitute(cut.places) for bound in node.when), *cut.bounds)
    axes = (cut.part, *kept) if front else (*kept, cut.part)
    pairs = [pieces.partial(Reduce(node.monoid, cut.inner, args, n, when), axes) for n in range(monoid.arity)]
    return [stage for stage, _ in pairs], tuple(load for _, load in pairs)


# ---- matrix products ----------------------------------------------------------------------------------------


def _split_product(pieces: _Pieces, kernel: Kernel, form: MatmulForm, parts: int) -> None:
    spec = known(pieces.program, kernel)
    first = spec.stages[0]
    require(
        form.k[0].extent % parts == ZERO,
        f"{kernel.id} ({kernel.note}): {parts} programs don't divide K = {form.k[0].extent} evenly",
    )
    cut = _Cut.of(form.k, parts, stage_axes(spec.stages))
    root = _linear_root(kernel, first.body)
    early, load = pieces.partial(_within(root, cut), (cut.part, *first.axes))
    final = replace(first, body=replace_node(first.body, root, Reduce("sum", (cut.part,), (load,))))
    stages = Stages((final, *spec.stages[1:]), spec.locals)
    pieces.kernels += [
        replace(kernel, id=pieces.names.fresh("k"), op=f"partial {kernel.op}", spec=Stages((early,)), calls=()),
        replace(kernel, op=f"final {kernel.op}", spec=stages, calls=()),
    ]


def _within(expr: Expr, cut: _Cut) -> Expr:
    """A combination of contractions over the axes inside one part only."""
    if not isinstance(expr, Contract):
        return rebuild(expr, lambda child: _within(child, cut))
    terms = tuple((rebind(a, cut.places), rebind(b, cut.places)) for a, b in expr.terms)
    return Contract(cut.inner, terms)


def _linear_root(kernel: Kernel, body: Expr) -> Expr:
    """The largest part of the body that is a linear combination of contractions with constant factors."""
    root = next((node for node in walk(body) if isinstance(node, Contract | Op) and _linear(node)), None)
    rest = body if root is None else replace_node(body, root, Const(0, DType.F32))
    if root is None or any(isinstance(node, Contract) for node in walk(rest)):
        raise IllegalAction(f"{kernel.id} ({kernel.note}): its contractions are not combined linearly")
    return root


def _linear(expr: Expr) -> bool:
    match expr:
        case Contract():
            return True
        case Op("add" | "sub", args):
            return all(_linear(arg) for arg in args)
        case Op("mul", (left, right)):
            return (isinstance(left, Const) and _linear(right)) or (isinstance(right, Const) and _linear(left))
    return False


def describe(program: Program, action: Action) -> str:
    return f"split the reduction of {named(program, action.region[0])} across {action.number('parts')} programs"


def parse(line: str) -> Action | None:
    found = _LINE.fullmatch(line)
    return action(token(found[1]), int(found[2])) if found else None
