"""Renders the matmul form: a tile of m by n for each program, a pipelined loop over k, then the epilogue in registers.

The batch, m, n and k axes of the stages are flattened to one index each, so N-d linear layers, transposed operands and
1x1 convolutions differ in their index maps only.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtmc.codegen.triton.emit import Emitter, FileParts, TileVar, bare, identifier, wrapped
from mtmc.codegen.triton.kernel import KernelFrame, Launch, RenderedKernel, full_tiles, text_of
from mtmc.codegen.triton.ops import POINTER_TYPE, TL_DTYPE
from mtmc.errors import CodegenError, IRError
from mtmc.ir.expr import Contract, Expr, Load, children, dtype_of
from mtmc.ir.forms.matmul import SHARED, MatmulForm, storage
from mtmc.ir.index import Axis, Index
from mtmc.ir.program import Kernel, Program
from mtmc.ir.types import DType

_HALF = (DType.F16, DType.BF16)
_SMS = "SMS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 1"
_DESCRIPTOR = "from triton.tools.tensor_descriptor import TensorDescriptor"


def render(program: Program, kernel: Kernel, form: MatmulForm, parts: FileParts) -> RenderedKernel:
    return _MatmulRenderer(program, kernel, form, parts).render()


@dataclass(frozen=True)
class _Descriptor:
    """A tensor map that the host makes: an operand as a tensor of two dimensions, or three with a batch."""

    name: str
    buffer: str
    axes: tuple[Axis, ...]
    """Slowest first; the last one is contiguous."""
    strides: tuple[Index, ...]
    block: tuple[int, ...]
    dtype: DType

    @property
    def make(self) -> str:
        shape = ", ".join(text_of(axis.extent) for axis in self.axes)
        strides = ", ".join(text_of(stride) for stride in self.strides)
        return f"{self.name} = TensorDescriptor({identifier(self.buffer)}, [{shape}], [{strides}], {list(self.block)})"

    @property
    def type(self) -> str:
        return f"tensordesc<{POINTER_TYPE[self.dtype].removeprefix('*')}{list(self.block)}>"


class _Side:
    """One operand side of all products, inside the K loop: its tile is [BM, BK] (left) or [BK, BN] (right)."""

    def __init__(self, owner: _MatmulRenderer, left: bool) -> None:
        self.owner, self.left = owner, left
        self.own = owner.m if left else owner.n
        self.shape = "[BM, BK]" if left else "[BK, BN]"
        self.names: dict[tuple[Expr, DType], str] = {}
        own, k = ("[:, None]", "[None, :]") if left else ("[None, :]", "[:, None]")
        self.k_mask = f"k_mask{k}" if owner.k_tail else None
        tiles = (*owner.batch_var(), owner.var(self.own, own), TileVar(owner.k, f"k{k}", self.k_mask))
        frame = owner.frame
        self.emitter = Emitter(owner.program, frame.body, owner.parts, tiles, owner.point, names=frame.names)

    def operand(self, expr: Expr, kind: DType) -> str:
        """Name of the operand's tile in the type that the tensor cores take; each is made once a step."""
        if (expr, kind) not in self.names:
            make = self._through_descriptor if self.owner.frame.schedule.descriptors else self._through_pointers
            self.names[expr, kind] = make(expr, kind)
        return self.names[expr, kind]

    def _through_pointers(self, expr: Expr, kind: DType) -> str:
        emitter = self.emitter
        if kind in _HALF and isinstance(expr, Load):
            text = emitter.stored(expr)
        else:
            text = emitter.value(expr)
            if kind in _HALF or dtype_of(expr, self.owner.program.dtype) is not kind:
                text = f"{wrapped(text)}.to({TL_DTYPE[kind]})"
        if emitter.varies(expr) < {self.own, self.owner.k}:
            text = f"tl.broadcast_to({bare(text)}, {self.shape})"
        if self.k_mask and not (isinstance(expr, Load) and expr.other == 0):
            # what was computed from masked loads need not be zero
            text = f"tl.where({self.k_mask}, {bare(text)}, 0.0)"
        return self._rounded(text, kind)

    def _through_descriptor(self, expr: Expr, kind: DType) -> str:
        found = self.owner.descriptor(expr, kind, self.left)
        places = {
            self.owner.b: "batch.to(tl.int32)" if self.owner.frame.wide else "batch",
            self.own: f"tile_{self.own.name} * B{self.own.name.upper()}",
            self.owner.k: "start",
        }
        text = f"{found.name}.load([{', '.join(places[axis] for axis in found.axes)}])"
        slow, fast = found.axes[-2:]
        if len(found.axes) == 3:
            text += f".reshape(B{slow.name.upper()}, B{fast.name.upper()})"
        if (fast == self.owner.k) is not self.left:
            text += ".T"
        name = self.emitter.fresh(found.buffer)
        self.owner.frame.body.line(f"{name} = {text}")
        return self._rounded(name, kind)

    def _rounded(self, text: str, kind: DType) -> str:
        if kind is DType.F32 and self.owner.frame.schedule.dot == "tf32":
            self.owner.parts.helpers["_round_tf32"] = None
            text = f"_round_tf32({bare(text)})"
        if text.isidentifier():
            return text
        name = self.emitter.fresh("lhs" if self.left else "rhs")
        self.owner.frame.body.line(f"{name} = {bare(text)}")
        return name


class _MatmulRenderer:
    def __init__(self, program: Program, kernel: Kernel, form: MatmulForm, parts: FileParts) -> None:
        self.frame = KernelFrame(program, kernel, parts)
        self.program, self.kernel, self.form, self.parts = program, kernel, form, parts
        self.tile_m, self.tile_n, self.tile_k = self.frame.schedule.tile
        self.b, self.m, self.n, self.k = form.flat.values()
        self.point = form.point
        self.separate = form.separate(self.frame.schedule)
        self.k_tail = not full_tiles(self.k.extent, self.tile_k)
        self.accumulators = [f"acc{number or ''}" for number in range(len(form.contracts))]
        self.frame.names.update(
            ["batch", "m", "n", "k", "start", "tile", "tile_m", "tile_n", "first", "rows", "place", "one"]
        )
        self.frame.names.update(["m_mask", "n_mask", "k_mask", *self.accumulators])
        self._check()
        self.descriptors: dict[tuple[Expr, bool], _Descriptor] = {}

    def render(self) -> RenderedKernel:
        frame, schedule = self.frame, self.frame.schedule
        tiles = self._tiles()
        if schedule.persistent:
            self.parts.setup[_SMS] = None
            grid = f"min({tiles}, SMS)"
            walk = f"(tl.program_id(0), {tiles}, tl.num_programs(0)"
            loop = f"tl.range{walk}, flatten=True)" if self._flatten() else f"range{walk})"
            with frame.body.indent(f"for tile in {loop}:"):
                self._one_tile("tile")
        else:
            grid = tiles
            self._one_tile("tl.program_id(0)")
        constexprs = (("BM", self.tile_m), ("BN", self.tile_n), ("BK", self.tile_k))
        sizes = " x ".join(text_of(axis.extent) for axis in (self.m, self.n, self.k))
        batches = f"{text_of(self.b.extent)} products of " if self.form.batch else ""
        comment = f"{self.kernel.note}: {batches}{sizes}."
        made = tuple(self.descriptors.values())
        extra = [(found.name, found.type, found.name) for found in made]
        extra += [("one", "fp32", "1.0")] if self.separate else []
        elsewhere = {name for stage in frame.spec.stages for name in _outside(stage.body)} | {*self.kernel.writes}
        without = {found.buffer for found in made} - elsewhere - {self.kernel.guard}
        before = tuple(found.make for found in made)
        return frame.finish(Launch((grid,), constexprs, tuple(extra), before, tuple(without)), comment)

    def _flatten(self) -> bool:
        """Whether the loops over tiles and over k become one, so that the next tile is fetched during an epilogue:
        its buffer then lives beside the pipeline's."""
        schedule = self.frame.schedule
        width = max(self.program.dtype(name).bytes for name in self.kernel.writes)
        needed = self.form.shared_bytes(self.program, schedule) + width * self.tile_m * self.tile_n
        return self.form.half and needed + 2048 <= SHARED

    # -- one tile of the output ---------------------------------------------------------------------------
    def _one_tile(self, program: str) -> None:
        body, wide = self.frame.body, self.frame.wide
        self._place(program)
        widen = ".to(tl.int64)" if wide else ""
        for axis, block, tail in ((self.m, "BM", self._tail(self.m)), (self.n, "BN", self._tail(self.n))):
            position = f"tile_{axis.name} * {block} + tl.arange(0, {block})"
            body.line(f"{axis.name} = " + (f"({position}){widen}" if wide else position))
            if tail:
                body.line(f"{axis.name}_mask = {axis.name} < {text_of(axis.extent)}")
        kinds = [self._kind(*term) for contract in self.form.contracts for term in contract.terms]
        acc_type = "tl.float64" if DType.F64 in kinds else "tl.float32"
        for name in self.accumulators:
            body.line(f"{name} = tl.zeros([BM, BN], {acc_type})")
        with body.indent(f"for start in range(0, {text_of(self.k.extent)}, BK):"):
            if not self.frame.schedule.descriptors:
                body.line(f"k = (start + tl.arange(0, BK)){widen}" if wide else "k = start + tl.arange(0, BK)")
                if self.k_tail:
                    body.line(f"k_mask = k < {text_of(self.k.extent)}")
            self._products()
        self._epilogue()

    def _place(self, program: str) -> None:
        """Emits which tile this program makes: rows of tiles in groups, so that neighbours share operands in L2."""
        line = self.frame.body.line
        rows, columns = self._count(self.m, self.tile_m), self._count(self.n, self.tile_n)
        each = rows * columns
        wide = ".to(tl.int64)" if self.frame.wide else ""
        position = program
        if self.form.batch:
            line(f"batch = ({program} // {_factor(each)}){wide}" if wide else f"batch = {program} // {_factor(each)}")
            position = f"{program} % {_factor(each)}"
        line(f"place = {position}")
        group = self.frame.schedule.group
        if columns.constant == 1 or rows.constant == 1:
            one_row = rows.constant == 1
            line(f"tile_m = {'0' if one_row else 'place'}")
            line(f"tile_n = {'place' if one_row else '0'}")
        elif group <= 1:
            line(f"tile_m = place // {_factor(columns)}")
            line(f"tile_n = place % {_factor(columns)}")
        else:
            span = columns * group
            line(f"first = place // {_factor(span)} * {group}")
            if (rows % group).constant == 0:
                size = str(group)
            else:
                line(f"rows = min({text_of(rows)} - first, {group})")
                size = "rows"
            line(f"tile_m = first + place % {_factor(span)} % {size}")
            line(f"tile_n = place % {_factor(span)} // {size}")

    def _products(self) -> None:
        left, right = _Side(self, left=True), _Side(self, left=False)
        line = self.frame.body.line
        apart: list[str] = []
        for number, (name, contract) in enumerate(zip(self.accumulators, self.form.contracts, strict=True)):
            for a, b in contract.terms:
                kind = self._kind(a, b)
                operands = f"{left.operand(a, kind)}, {right.operand(b, kind)}"
                if self.separate and number == 0:
                    product = left.emitter.fresh("product")
                    line(f"{product} = tl.dot({operands})")
                    apart.append(f"{name} += {product} * one")
                elif kind in _HALF:
                    line(f"{name} = tl.dot({operands}, {name})")
                elif kind is DType.F64:
                    line(f"{name} = tl.dot({operands}, {name}, out_dtype=tl.float64)")
                else:
                    line(f'{name} = tl.dot({operands}, {name}, input_precision="{self.frame.schedule.dot}")')
        for addition in apart:
            # the additions run while the tensor cores are still busy with the last product
            line(addition)

    def _epilogue(self) -> None:
        body = self.frame.body
        tiles = (*self.batch_var(), self.var(self.m, "[:, None]"), self.var(self.n, "[None, :]"))
        given: dict[Expr, str] = dict(zip(self.form.contracts, self.accumulators, strict=True))
        emitter = Emitter(self.program, body, self.parts, tiles, self.point, given=given, names=self.frame.names)
        for stage in self.frame.spec.stages:
            local = stage.target in self.frame.spec.locals
            text = emitter.named(stage.body, stage.target) if local else emitter.value(stage.body)
            if stage.accumulate:
                raise CodegenError(f"{self.kernel.id}: the matmul form does not accumulate")
            emitter.bound[stage.target] = text
            if not local:
                emitter.store(stage.target, stage.store, text, stage.when)

    # -- pieces -------------------------------------------------------------------------------------------
    def batch_var(self) -> tuple[TileVar, ...]:
        return (TileVar(self.b, "batch"),) if self.form.batch else ()

    def var(self, axis: Axis, spread: str) -> TileVar:
        return TileVar(axis, f"{axis.name}{spread}", f"{axis.name}_mask{spread}" if self._tail(axis) else None)

    def _tail(self, axis: Axis) -> bool:
        return not full_tiles(axis.extent, self.tile_m if axis is self.m else self.tile_n)

    def _count(self, axis: Axis, block: int) -> Index:
        return (axis.extent + (block - 1)) // block

    def _tiles(self) -> str:
        return text_of(self.b.extent * self._count(self.m, self.tile_m) * self._count(self.n, self.tile_n))

    def _kind(self, a: Expr, b: Expr) -> DType:
        """The type in which a pair of operands is multiplied."""
        left, right = storage(self.program, a), storage(self.program, b)
        if left is right and left in _HALF:
            return left
        types = (dtype_of(a, self.program.dtype), dtype_of(b, self.program.dtype))
        if not any(t.is_float for t in types):
            raise CodegenError(
                f"{self.kernel.id} ({self.kernel.note}): tensor cores multiply no {types[0]} operands exactly"
            )
        return DType.F64 if DType.F64 in types else DType.F32

    def _check(self) -> None:
        dot, kernel = self.frame.schedule.dot, self.kernel
        if dot not in ("ieee", "tf32x3", "tf32"):
            raise CodegenError(f"{kernel.id}: '{dot}' is no precision of a product; ieee, tf32x3 and tf32 are")
        if dot == "tf32" and kernel.rounding != "tf32":
            raise CodegenError(
                f"{kernel.id}: the reference does not round its operands, so TF32 products are too coarse"
            )
        if any(block < 16 or block & (block - 1) for block in self.frame.schedule.tile):
            raise CodegenError(f"{kernel.id}: tiles of a product are powers of two from 16 up")

    def descriptor(self, expr: Expr, kind: DType, left: bool) -> _Descriptor:
        """The tensor map of an operand; CodegenError where it is no plain matrix that a descriptor can describe."""
        if (expr, left) in self.descriptors:
            return self.descriptors[expr, left]
        where = f"{self.kernel.id} ({self.kernel.note})"
        try:
            strides = self.form.matrix(self.program, expr, left)
        except IRError as error:
            raise CodegenError(f"{where}: {error}; use pointers") from error
        assert isinstance(expr, Load)
        if self.program.dtype(expr.buffer) is not kind:
            raise CodegenError(f"{where}: '{expr.buffer}' would have to be widened on the way in; use pointers")
        own = self.m if left else self.n
        slow, fast = (own, self.k) if strides["k"].constant == 1 else (self.k, own)
        axes = (self.b, slow, fast) if "batch" in strides else (slow, fast)
        sizes = {self.b: 1, self.m: self.tile_m, self.n: self.tile_n, self.k: self.tile_k}
        base = f"{identifier(expr.buffer)}_desc"
        taken = {found.name for found in self.descriptors.values()}
        name = next(name for name in (base, *(f"{base}_{n}" for n in range(1, 9))) if name not in taken)
        block = tuple(sizes[axis] for axis in axes)
        made = _Descriptor(name, expr.buffer, axes, tuple(strides[a.name] for a in axes), block, kind)
        self.parts.setup[_DESCRIPTOR] = None
        self.descriptors[expr, left] = made
        return made


def _outside(expr: Expr) -> set[str]:
    """Buffers that are loaded outside of every contraction."""
    if isinstance(expr, Contract):
        return set()
    here = {expr.buffer} if isinstance(expr, Load) else set()
    return here.union(*(_outside(child) for child in children(expr)))


def _factor(index: Index) -> str:
    """An index as a factor in a product or a division."""
    return text_of(index) if index.constant is not None else f"({text_of(index)})"
