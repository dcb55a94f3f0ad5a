"""Renders the row form.

Whole: a block of rows is loaded once into registers, everything happens there. Loop: one pass over the row for each
level of reductions, each lane with its own accumulator, then one pass that stores what has the row's shape.
"""

from __future__ import annotations

from mtmc.codegen.triton.emit import Emitter, FileParts, TileVar, identifier
from mtmc.codegen.triton.kernel import KernelFrame, Launch, RenderedKernel, cdiv_text, full_tiles, text_of
from mtmc.codegen.triton.ops import bare
from mtmc.codegen.triton.reduce import Reduction, TileShape, distinct, key_of
from mtmc.errors import CodegenError
from mtmc.ir.expr import Expr, Load, Reduce, Stage, dtype_of, loads, map_loads, walk
from mtmc.ir.forms.form import extent, nodes, typical
from mtmc.ir.forms.row import RowForm, reduction_levels
from mtmc.ir.index import Axis, Index, delinearize
from mtmc.ir.ops import MONOIDS
from mtmc.ir.program import Kernel, Program


def render(program: Program, kernel: Kernel, form: RowForm, parts: FileParts) -> RenderedKernel:
    return _RowRenderer(program, kernel, form, parts).render()


class _RowRenderer:
    def __init__(self, program: Program, kernel: Kernel, form: RowForm, parts: FileParts) -> None:
        self.frame = KernelFrame(program, kernel, parts)
        self.program, self.form, self.parts = program, form, parts
        self.rows, self.columns = self.frame.schedule.tile
        self.total_rows, self.total_columns = extent(form.kept), extent(form.inner)
        self.m, self.k = Axis("m", self.total_rows), Axis("k", self.total_columns)
        self.shape = TileShape(self.rows > 1, self.m, self.k)
        self.point: dict[Axis, Index] = {}
        for axes, flat in ((form.kept, self.m), (form.inner, self.k)):
            places = delinearize(Index.of(flat), [axis.extent for axis in axes])
            self.point.update(zip(axes, places, strict=True))
        self.stages = _inlined(form, self.frame.spec.locals, kernel)
        self.levels, self.depth = reduction_levels(self.stages, self.frame.spec.locals)
        steps = typical(self.total_columns) // self.columns if self.frame.schedule.loop else 1
        self.reductions = [
            Reduction(
                node,
                self.shape,
                f"r{number}",
                wide=self.frame.wide,
                steps=steps,
                floating=dtype_of(node.args[0], program.dtype).is_float,
            )
            for number, node in enumerate(distinct(nodes(self.stages, Reduce)))
        ]
        self.given: dict[Expr, str] = {}
        self.bound: dict[str, str] = {}
        self._cols_emitted = False

    def render(self) -> RenderedKernel:
        frame = self.frame
        frame.names.update(["m", "k", "cols", "start", "m_mask", "k_mask"])
        self._open_rows()
        self.row = self._emitter(False)
        if frame.schedule.loop:
            self._loop()
        else:
            self._whole()
        constexprs = ((("ROWS", self.rows),) if self.shape.two_d else ()) + (("COLS", self.columns),)
        passes = "in several passes" if self.form.passes > 1 else "in a loop"
        where = passes if frame.schedule.loop else "in registers"
        comment = f"{frame.kernel.note}: {text_of(self.total_rows)} rows of {text_of(self.total_columns)}, {where}."
        return frame.finish(Launch((cdiv_text(self.total_rows, self.rows),), constexprs), comment)

    # -- the two ways to walk a row ---------------------------------------------------------------------
    def _whole(self) -> None:
        if self.total_columns.maximum() > self.columns:
            row = f"{self.frame.kernel.id}: a row of {self.total_columns}"
            raise CodegenError(f"{row} does not fit in {self.columns} columns")
        body = self.frame.body
        wide = ".to(tl.int64)" if self.frame.wide else ""
        body.line(f"k = tl.arange(0, COLS){wide}" + ("[None, :]" if self.shape.two_d else ""))
        full = self._column_mask("k")
        self._expect(full, self.reductions, [stage for stage in self.stages if self._is_full(stage)])
        done: set[Reduce] = set()
        for stage in self.stages:
            for reduction in self.reductions:
                if reduction.node in done or not _uses(stage, reduction.node):
                    continue
                done.add(reduction.node)
                self._give(reduction, reduction.whole(full, full.tiles[self.k].text))
                full.given.update(self.given)
            if self._is_full(stage):
                self._finish_stage(stage, full)
            else:
                self._finish_stage(stage, self.row)
                full.bound.update(self.bound)

    def _loop(self) -> None:
        last = max([*self.levels.values(), *(self.depth[s.target] for s in self.stages)])
        finished: set[int] = set()
        for level in range(last + 1):
            reductions = [r for r in self.reductions if self._level(r) == level + 1]
            full_stages = [s for s in self.stages if self._is_full(s) and self.depth[s.target] == level]
            if reductions or full_stages:
                self._pass(level, reductions, full_stages)
            for number, stage in enumerate(self.stages):
                ready = self.depth[stage.target] <= level + 1 and not self._is_full(stage)
                if ready and number not in finished:
                    finished.add(number)
                    self._finish_stage(stage, self.row)

    def _pass(self, level: int, reductions: list[Reduction], full_stages: list[Stage]) -> None:
        body = self.frame.body
        if not self._cols_emitted:
            body.line("cols = tl.arange(0, COLS)" + ("[None, :]" if self.shape.two_d else ""))
            self._cols_emitted = True
        for reduction in reductions:
            reduction.start(self.row)
        total = text_of(self.total_columns)
        step = "(start + cols)"
        if self.frame.schedule.order and level % 2 == 1:
            final = cdiv_text(self.total_columns - self.columns, self.columns)
            step = f"({final} * COLS - start + cols)" if self.total_columns.constant else step
        with body.indent(f"for start in range(0, {total}, COLS):"):
            body.line(f"k = {step}.to(tl.int64)" if self.frame.wide else f"k = {bare(step)}")
            full = self._column_mask("k")
            self._expect(full, reductions, full_stages)
            for reduction in reductions:
                reduction.update(full, full.tiles[self.k].text)
            for stage in full_stages:
                self._finish_stage(stage, full)
        for reduction in reductions:
            self._give(reduction, reduction.finish(self.row))
        self.row.given.update(self.given)

    # -- pieces -------------------------------------------------------------------------------------------
    @staticmethod
    def _expect(full: Emitter, reductions: list[Reduction], stages: list[Stage]) -> None:
        """What several reductions and stages of one tile share is computed once."""
        full.expect(*(arg for r in reductions for arg in r.node.args), *(stage.body for stage in stages))

    def _open_rows(self) -> None:
        body, wide = self.frame.body, self.frame.wide
        program = "tl.program_id(0)" + (".to(tl.int64)" if wide else "")
        if not self.shape.two_d:
            body.line(f"m = {program}")
            self.m_mask = None
            return
        body.line(f"m = ({program} * ROWS + tl.arange(0, ROWS))[:, None]")
        self.m_mask = None
        if not full_tiles(self.total_rows, self.rows):
            body.line(f"m_mask = m < {text_of(self.total_rows)}")
            self.m_mask = "m_mask"

    def _column_mask(self, text: str) -> Emitter:
        mask = None
        if not full_tiles(self.total_columns, self.columns):
            self.frame.body.line(f"k_mask = {text} < {text_of(self.total_columns)}")
            mask = "k_mask"
        return self._emitter(True, mask)

    def _emitter(self, full: bool, mask: str | None = None) -> Emitter:
        tiles = [TileVar(self.m, "m", self.m_mask)]
        if full:
            tiles.append(TileVar(self.k, "k", mask))
        return Emitter(
            self.program,
            self.frame.body,
            self.parts,
            tuple(tiles),
            self.point,
            self.bound,
            self.given,
            self.frame.names,
        )

    def _is_full(self, stage: Stage) -> bool:
        return bool(set(stage.axes) & set(self.form.inner))

    def _level(self, reduction: Reduction) -> int:
        return max(level for node, level in self.levels.items() if key_of(node) == reduction.node)

    def _give(self, reduction: Reduction, parts: list[str]) -> None:
        node = reduction.node
        for part in range(MONOIDS[node.monoid].arity):
            self.given[Reduce(node.monoid, node.axes, node.args, part, node.when)] = parts[part]
        self.row.given.update(self.given)

    def _finish_stage(self, stage: Stage, emitter: Emitter) -> None:
        """Stores a stage's value, or keeps it where it is local."""
        local = stage.target in self.frame.spec.locals
        text = emitter.named(stage.body, stage.target) if local else emitter.value(stage.body)
        if stage.accumulate:
            self._accumulate(stage, emitter, text)
            return
        if not local:
            emitter.store(stage.target, stage.store, text, stage.when)
        if not self._is_full(stage):
            self.bound[stage.target] = text
            self.row.bound[stage.target] = text

    def _accumulate(self, stage: Stage, emitter: Emitter, text: str) -> None:
        """Combines the tile's values into one element with a single atomic, and none where they change nothing."""
        if any(index.axes for index in stage.store):
            raise CodegenError(f"{self.frame.kernel.id}: only one-element buffers are accumulated into")
        masks = [tile.mask for tile in emitter.tiles.values() if tile.mask]
        value = bare(text)
        if masks:
            value = f"tl.where({' & '.join(masks)}, {value}, 0)"
        how = "max" if stage.accumulate == "max" else "sum"
        match self.shape.two_d, self._is_full(stage):
            case True, True:
                spread = f"tl.broadcast_to({value}, {self.shape.text})"
                total = f"tl.{how}(tl.reshape({spread}, [ROWS * COLS]), 0)"
            case True, False:
                total = f"tl.{how}(tl.reshape({value}, [ROWS]), 0)"
            case False, True:
                total = f"tl.{how}(tl.broadcast_to({value}, {self.shape.text}), 0)"
            case _:
                total = value
        name = emitter.fresh(f"{stage.target}_tile")
        self.frame.body.line(f"{name} = {total}")
        pointer = f"{identifier(stage.target)}_ptr"
        self.frame.body.line(f'tl.atomic_{stage.accumulate}({pointer}, {name}, mask={name} != 0, sem="relaxed")')


def _uses(stage: Stage, node: Reduce) -> bool:
    return any(isinstance(found, Reduce) and key_of(found) == node for found in walk(stage.body))


def _inlined(form: RowForm, local: tuple[str, ...], kernel: Kernel) -> tuple[Stage, ...]:
    """Elementwise local stages of the row's shape, written into their readers: registers hold what is used twice."""
    inner = set(form.inner)
    bodies: dict[str, Expr] = {}
    kept: list[Stage] = []

    def resolve(load: Load) -> Expr:
        return bodies.get(load.buffer, load)

    for stage in form.stages:
        body = map_loads(stage.body, resolve)
        if stage.target in local and set(stage.axes) & inner:
            bodies[stage.target] = body
            continue
        kept.append(Stage(stage.axes, stage.target, stage.store, body, stage.accumulate, stage.when))
        if set(stage.axes) & inner and any(load.buffer == stage.target for s in form.stages for load in loads(s.body)):
            bodies[stage.target] = body
    return tuple(kept)
