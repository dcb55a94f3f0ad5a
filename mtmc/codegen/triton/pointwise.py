"""Renders the pointwise form: the domain flattened to one index, a block of it for each program."""

from __future__ import annotations

from itertools import product as cartesian

from mtmc.codegen.triton.emit import Emitter, FileParts, TileVar
from mtmc.codegen.triton.kernel import KernelFrame, Launch, RenderedKernel, cdiv_text, full_tiles, text_of
from mtmc.errors import CodegenError
from mtmc.ir.expr import Const, Expr, Op, Reduce, Select, dtype_of, map_loads, rebuild, substitute
from mtmc.ir.forms.form import extent
from mtmc.ir.forms.pointwise import PointwiseForm
from mtmc.ir.index import Axis, Index, delinearize
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import Kernel, Program

_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def render(program: Program, kernel: Kernel, form: PointwiseForm, parts: FileParts) -> RenderedKernel:
    frame = KernelFrame(program, kernel, parts)
    (block,) = frame.schedule.tile
    total = extent(form.domain)
    flat = Axis("i", total)
    body = frame.body
    start = "tl.program_id(0)" + (".to(tl.int64)" if frame.wide else "")
    if frame.schedule.order:
        start = f"({cdiv_text(total, block)} - 1 - {start})"
    body.line(f"i = {start} * BLOCK + tl.arange(0, BLOCK)")
    mask = None
    if not full_tiles(total, block):
        body.line(f"mask = i < {text_of(total)}")
        mask = "mask"
    frame.names.update(["i", "mask"])
    places = delinearize(Index.of(flat), [axis.extent for axis in form.domain])
    point = dict(zip(form.domain, places, strict=True))
    emitter = Emitter(program, body, parts, (TileVar(flat, "i", mask),), point, names=frame.names)
    bodies = [unroll(stage.body, program) for stage in frame.spec.stages]
    emitter.expect(*bodies)
    for stage, stage_body in zip(frame.spec.stages, bodies, strict=True):
        if stage.accumulate:
            raise CodegenError(f"{kernel.id}: the pointwise form does not accumulate")
        text = emitter.value(stage_body)
        if stage.target in frame.spec.locals:
            if not text.isidentifier():
                name = emitter.fresh(stage.target)
                body.line(f"{name} = {text}")
                text = name
            emitter.bound[stage.target] = text
        else:
            emitter.store(stage.target, stage.store, text, stage.when)
            # a later stage of this kernel reads the value, not the memory
            emitter.bound[stage.target] = text
    launch = Launch((cdiv_text(total, block),), (("BLOCK", block),))
    return frame.finish(launch, f"{kernel.note}: {text_of(total)} points in blocks of {block}.", stages=1)


def unroll(expr: Expr, program: Program) -> Expr:
    """Writes every small window reduction out, point by point."""
    expr = rebuild(expr, lambda child: unroll(child, program))
    if not isinstance(expr, Reduce):
        return expr
    monoid = MONOIDS[expr.monoid]
    kind = dtype_of(expr.args[0], program.dtype)
    identity = Const(monoid.identity[0], kind)
    total: Expr | None = None
    for position in cartesian(*(range(axis.extent.evaluate({})) for axis in expr.axes)):
        places = {axis: Index.of(value) for axis, value in zip(expr.axes, position, strict=True)}
        value = substitute(expr.args[0], places)
        when = tuple(bound.substitute(places) for bound in expr.when)
        if when:
            value = _predicated(value, when, identity)
        total = value if total is None else Op(_COMBINE[expr.monoid], (total, value))
    assert total is not None
    return total


def _predicated(value: Expr, when: tuple[Index, ...], identity: Const) -> Expr:
    """A value that is the identity where the window sticks out; a plain load takes the predicate itself."""
    from dataclasses import replace

    from mtmc.ir.expr import Load

    if isinstance(value, Load) and not value.when:
        return replace(value, when=when, other=float(identity.value))
    guarded = map_loads(value, lambda load: replace(load, when=load.when + when) if not load.when else load)
    return Select(when, guarded, identity)
