"""Renders the scan form: a block of rows, whole or in steps that carry the running value."""

from __future__ import annotations

from mtmc.codegen.triton.emit import Emitter, FileParts, TileVar, literal
from mtmc.codegen.triton.kernel import KernelFrame, Launch, RenderedKernel, cdiv_text, full_tiles, text_of
from mtmc.codegen.triton.ops import TL_DTYPE, bare
from mtmc.codegen.triton.reduce import TileShape
from mtmc.errors import CodegenError
from mtmc.ir.expr import Expr, Scan, dtype_of
from mtmc.ir.forms.form import extent, nodes
from mtmc.ir.forms.scan import ScanForm
from mtmc.ir.index import Axis, Index, delinearize
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import Kernel, Program

_COMBINE = {"prod": "_mul", "max": "_max", "min": "_min"}


def render(program: Program, kernel: Kernel, form: ScanForm, parts: FileParts) -> RenderedKernel:
    frame = KernelFrame(program, kernel, parts)
    rows, columns = frame.schedule.tile
    total_rows, length = extent(form.kept), form.axis.extent
    m, k = Axis("m", total_rows), Axis("k", length)
    shape = TileShape(rows > 1, m, k)
    body = frame.body
    frame.names.update(["m", "k", "cols", "start", "m_mask", "k_mask"])
    places = delinearize(Index.of(m), [axis.extent for axis in form.kept])
    point = dict(zip(form.kept, places, strict=True)) | {form.axis: Index.of(k)}
    first = "tl.program_id(0)" + (".to(tl.int64)" if frame.wide else "")
    spread = "[None, :]" if shape.two_d else ""
    m_mask = None
    if shape.two_d:
        body.line(f"m = ({first} * ROWS + tl.arange(0, ROWS))[:, None]")
        if not full_tiles(total_rows, rows):
            body.line(f"m_mask = m < {text_of(total_rows)}")
            m_mask = "m_mask"
    else:
        body.line(f"m = {first}")
    scans = [node for node in nodes(frame.spec.stages, Scan) if isinstance(node, Scan)]
    carries = [f"carry{number}" for number in range(len(scans))]

    def step(text: str) -> None:
        body.line(f"k = {text}")
        k_mask = None
        if not full_tiles(length, columns):
            body.line(f"k_mask = k < {text_of(length)}")
            k_mask = "k_mask"
        tiles = (TileVar(m, "m", m_mask), TileVar(k, "k", k_mask))
        emitter = Emitter(program, body, parts, tiles, point, names=frame.names)
        ready: dict[Expr, str] = {}
        for stage in frame.spec.stages:
            for number, scan in enumerate(scans):
                if scan not in ready and _reachable(scan, stage.body):
                    carry = carries[number] if frame.schedule.loop else None
                    ready[scan] = _scan(emitter, scan, shape, k_mask, carry, f"scan{number}")
                    emitter.given[scan] = ready[scan]
            text = emitter.named(stage.body, stage.target)
            emitter.bound[stage.target] = text
            if stage.target not in frame.spec.locals:
                emitter.store(stage.target, stage.store, text, stage.when)

    if frame.schedule.loop:
        for carry, scan in zip(carries, scans, strict=True):
            kind = dtype_of(scan.arg, program.dtype)
            size = "[ROWS, 1]" if shape.two_d else "[1]"
            identity = literal(MONOIDS[scan.monoid].identity[0], kind)
            body.line(f"{carry} = tl.full({size}, {identity}, {TL_DTYPE[kind]})")
        body.line(f"cols = tl.arange(0, COLS){spread}")
        with body.indent(f"for start in range(0, {text_of(length)}, COLS):"):
            step("(start + cols).to(tl.int64)" if frame.wide else "start + cols")
    else:
        if length.maximum() > columns:
            raise CodegenError(f"{kernel.id}: a row of {length} does not fit in {columns} columns")
        step(f"tl.arange(0, COLS){spread}")
    constexprs = ((("ROWS", rows),) if shape.two_d else ()) + (("COLS", columns),)
    comment = f"{kernel.note}: {text_of(total_rows)} rows, each scanned over {text_of(length)}."
    return frame.finish(Launch((cdiv_text(total_rows, rows),), constexprs), comment)


def _reachable(scan: Scan, expr: Expr) -> bool:
    from mtmc.ir.expr import walk

    return any(node == scan for node in walk(expr))


def _scan(emitter: Emitter, scan: Scan, shape: TileShape, mask: str | None, carry: str | None, name: str) -> str:
    """Emits one scan of the tile, and moves the carry on."""
    kind = dtype_of(scan.arg, emitter.program.dtype)
    identity = literal(MONOIDS[scan.monoid].identity[0], kind)
    x = bare(emitter.value(scan.arg))
    if mask:
        x = f"tl.where({mask}, {x}, {identity})"
    if emitter.varies(scan.arg) < ({shape.row, shape.column} if shape.two_d else {shape.column}):
        x = f"tl.broadcast_to({x}, {shape.text})"
    line, axis = emitter.writer.line, 1 if shape.two_d else 0
    value = emitter.fresh(f"{name}_x")
    line(f"{value} = {x}")
    running = emitter.fresh(name)
    combine = _COMBINE.get(scan.monoid)
    if combine is None:
        line(f"{running} = tl.cumsum({value}, {axis})")
        step, total = "{} + {}", f"tl.sum({value}, {axis}, keep_dims=True)"
    else:
        emitter.parts.helpers[combine] = None
        line(f"{running} = tl.associative_scan({value}, {axis}, {combine})")
        step, total = f"{combine}({{}}, {{}})", f"tl.reduce({value}, {axis}, {combine}, keep_dims=True)"
    if carry:
        line(f"{running} = {step.format(carry, running)}")
        line(f"{carry} = {step.format(carry, total)}")
    return running
