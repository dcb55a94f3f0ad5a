"""``mtmc.optimize(module, example_inputs)``: a faster drop-in for an ``nn.Module``, also from a notebook.

What comes back shares the original's parameters, buffers and submodules, so ``state_dict``, ``load_state_dict``, ``to``
and optimisers see one and the same module. Only ``forward`` changes, and it refuses what it was not made for.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import psutil
import torch

from mtmc.data.step import content_hash, library_versions
from mtmc.errors import EnvironmentProblem, StoreError, UsageError
from mtmc.ir.codec import from_json, to_json
from mtmc.ir.program import Buffer, Library, Program, Role
from mtmc.log import get_logger
from mtmc.problem.module import save_module
from mtmc.problem.tree import bytes_of, tensors
from mtmc.search.driver import optimize_problem
from mtmc.search.output import write_whole, written_source
from mtmc.search.result import MARGIN, SearchResult
from mtmc.settings import cache_dir
from mtmc.verify.device import is_cuda, resolve

log = get_logger("api")

Unsupported = Literal["error", "reference"]

FORMAT = 1
COPIES = 5
"""Times the module's bytes that judging needs: reference, candidate, float64 oracle (two), and slack."""
RESERVE_BYTES = 1 << 30
"""Contexts and libraries of two children on a card."""


@dataclass(frozen=True)
class Report:
    """What came out. ``str(report)`` is one paragraph for people."""

    optimized: bool
    """Whether the generated program is used; else the original module runs."""
    winner: str | None
    """``mtmc``, ``torch.compile`` or ``eager``; None where nothing was timed."""
    correct: bool
    ms: float | None
    eager_ms: float | None
    compile_ms: float | None
    actions: tuple[str, ...]
    generated_share: float | None
    notes: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return self.message


class OptimizedModule(torch.nn.Module):
    """The original module with a generated forward; parameters, buffers and submodules are the original's own.

    ``report`` says how it came about. ``forward`` raises ``UsageError`` for another shape, dtype, device or mode, under
    autograd and under autocast, or with ``on_unsupported="reference"`` logs that and runs the original.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        program: Program,
        source: str,
        report: Report,
        on_unsupported: Unsupported,
    ) -> None:
        super().__init__()
        self.__dict__["_original"] = module
        # Shared, not copied: one set of parameters under the original's names.
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[name] = module.__dict__[name]
        self.__dict__["training"] = module.training
        self.report = report
        self.on_unsupported = on_unsupported
        self._program = program
        self._source = source
        self._captured_training = module.training
        self._guard = _Guard(program)
        self._generated = _load(source).ModelNew.forward if report.optimized else None
        self._told: set[str] = set()

    @property
    def original(self) -> torch.nn.Module:
        """The module as it was handed in."""
        return self.__dict__["_original"]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self.__dict__["_original"], name)

    def train(self, mode: bool = True) -> OptimizedModule:
        super().train(mode)
        self.original.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._generated is None:
            return self.original(*args, **kwargs)
        if kwargs:
            bound = inspect.signature(self.original.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        reason = "keyword-only arguments were given" if kwargs else self._refusal(args)
        if reason is None:
            return self._generated(self, *args)
        if self.on_unsupported == "error":
            raise UsageError(
                f"The optimised {type(self.original).__name__} can't serve this call: {reason}. Optimise it "
                'for that, or pass on_unsupported="reference" to run the original there.'
            )
        if reason not in self._told:
            self._told.add(reason)
            log.warning("the original %s runs instead: %s", type(self.original).__name__, reason)
        return self.original(*args, **kwargs)

    def _refusal(self, args: Sequence[Any]) -> str | None:
        if self.training != self._captured_training:
            made, now = _mode(self._captured_training), _mode(self.training)
            return f"it was made in {made} mode and is now in {now} mode"
        return self._guard.refusal(self, args)

    def save(self, path: str | Path) -> None:
        """Write what ``load_optimized`` needs, without the weights.

        Raises:
            UsageError: the file can't be written.
        """
        fields = {
            "format": FORMAT,
            "source": self._source,
            "program": to_json(self._program),
            "training": self._captured_training,
            "on_unsupported": self.on_unsupported,
            "report": asdict(self.report),
            "versions": library_versions(),
        }
        write_whole(Path(path), json.dumps(fields))


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


class _Guard:
    """What the generated kernels were made for, checked on every call."""

    def __init__(self, program: Program) -> None:
        self.launches = any(not isinstance(kernel.impl, Library) for kernel in program.kernels)
        used = {name for kernel in program.kernels for name in kernel.depends} | set(program.live_out)
        self.inputs = {int(b.source): b for b in program.buffers if b.role is Role.INPUT}
        self.state = [
            (b.source, _dtype(b)) for b in program.buffers if b.role in (Role.PARAMETER, Role.STATE) and b.name in used
        ]
        self.fixed = dict(program.fixed_arguments)

    def refusal(self, module: OptimizedModule, args: Sequence[Any]) -> str | None:
        """Why the kernels can't serve this call, or None."""
        expected = len(self.inputs) + len(self.fixed)
        if len(args) != expected:
            return f"it takes {expected} arguments and got {len(args)}"
        sizes: dict[str, int] = {}
        device: torch.device | None = None
        for position, buffer in self.inputs.items():
            given = args[position]
            if not isinstance(given, torch.Tensor):
                return f"argument {position} is a {type(given).__name__}, not a tensor"
            if (found := _mismatch(buffer, given, sizes)) is not None:
                return f"argument {position} {found}"
            device = device or given.device
            if given.device != device:
                return f"argument {position} is on {given.device}, another one on {device}"
        if device is not None and device.type == "cpu" and self.launches and not _interpreted():
            return "the arguments are on the CPU, and the kernels need a GPU"
        if device is not None and torch.is_autocast_enabled(device.type):
            return "autocast would change the precision of its operations"
        for position, value in self.fixed.items():
            if args[position] != value:
                return f"argument {position} was {value!r} and is now {args[position]!r}"
        gradients = torch.is_grad_enabled()
        if gradients and any(args[position].requires_grad for position in self.inputs):
            return "an argument needs gradients, which the kernels do not compute"
        for path, dtype in self.state:
            tensor = _attribute(module, path)
            if tensor.dtype != dtype:
                return f"{path} is now {tensor.dtype}, it was {dtype}"
            if device is not None and tensor.device != device:
                return f"{path} is on {tensor.device}, the arguments on {device}"
            if gradients and tensor.requires_grad:
                return "gradients are recorded, which the kernels do not compute; use torch.no_grad()"
        return None


def _interpreted() -> bool:
    """Whether Triton runs kernels on the CPU in this process (``TRITON_INTERPRET=1``)."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _mismatch(buffer: Buffer, given: torch.Tensor, sizes: dict[str, int]) -> str | None:
    if given.dtype != _dtype(buffer):
        return f"is {given.dtype}, not {_dtype(buffer)}"
    shape = f"({', '.join(map(str, buffer.shape))})"
    if given.dim() != len(buffer.shape):
        return f"has shape {tuple(given.shape)}, not {shape}"
    for extent, size in zip(buffer.shape, given.shape, strict=True):
        for dim in extent.dims:
            if extent.single == dim:
                if size > dim.limit:
                    return f"has {dim.name} = {size}, at most {dim.limit} was declared"
                sizes.setdefault(dim.name, size)
        if all(dim.name in sizes for dim in extent.dims) and extent.evaluate(sizes) != size:
            return f"has shape {tuple(given.shape)}, not {shape}"
    return None


def _dtype(buffer: Buffer) -> torch.dtype:
    return getattr(torch, buffer.dtype.value)


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    owner, _, name = path.rpartition(".")
    return getattr(module.get_submodule(owner), name)


def optimize(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[Any],
    *,
    steps: int = 8,
    seconds: float | None = None,
    on_unsupported: Unsupported = "error",
    accept: Literal["faster", "correct"] = "faster",
    dynamic_batch: int | None = None,
    device: str | None = None,
    **search: Any,
) -> OptimizedModule:
    """Search for faster kernels for ``module`` on inputs of these shapes and dtypes.

    Args:
        module: on the device and in the mode (``eval()``) in which it will run.
        example_inputs: positional arguments of one forward; their values are what the judge uses, too.
        steps: judged steps, at most.
        seconds: wall seconds of search, at most.
        on_unsupported: what a call that the kernels were not made for does: ``error``, or run the original and log it
            (``reference``).
        accept: use the generated program only where it is ``faster`` than eager, or wherever it is ``correct``.
        dynamic_batch: the largest batch: dimension 0 of every input may then be anything from 1 to this, and the
            result is judged on half and twice the examples' batch as well. Default: only the examples' own size.
        device: where to judge; default: the example inputs' card, else ``MTMC_DEVICE``.
        search: further arguments of ``mtmc.search.driver.optimize_problem``.

    Returns:
        A module to use in place of ``module``. Where nothing was faster it runs the original, and ``report`` says so.

    Raises:
        UsageError: the inputs are no tensors.
        ProblemError, CaptureError: torch.export refuses the module.
        EnvironmentProblem: too little memory.
    """
    if on_unsupported not in ("error", "reference"):
        raise UsageError(f'on_unsupported is "error" or "reference", not {on_unsupported!r}.')
    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    first = next(tensors(inputs), None)
    if first is None:
        raise UsageError("The example inputs hold no tensor; give the positional arguments of one forward.")
    device = resolve(device or (str(first.device) if first.is_cuda else None))
    check_memory(module, inputs, device)
    with tempfile.TemporaryDirectory(prefix="mtmc-module-") as folder:
        problem = save_module(module, inputs, Path(folder), batch_limit=dynamic_batch or 0)
        result = optimize_problem(problem, steps=steps, seconds=seconds, device=device, **search)
        source = written_source(result)
    return OptimizedModule(module, result.program, source, _report(result, accept), on_unsupported)


def load_optimized(
    path: str | Path, module: torch.nn.Module, *, on_unsupported: Unsupported | None = None
) -> OptimizedModule:
    """What ``OptimizedModule.save`` wrote, around a module of the same structure; nothing is searched or measured.

    Raises:
        UsageError: the file does not read, or ``module`` has other parameters than the one that was optimised.
    """
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
        known = fields["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"The file {path} can't be read as an optimised module ({error}); save it again.") from None
    if not known:
        raise UsageError(f"The file {path} has format {fields['format']}, this mtmc reads {FORMAT}; optimise again.")
    program = from_json(fields["program"])
    _check_state(module, program)
    module.train(fields["training"])
    report = fields["report"]
    kept = Report(**{**report, "actions": tuple(report["actions"]), "notes": tuple(report["notes"])})
    return OptimizedModule(module, program, fields["source"], kept, on_unsupported or fields["on_unsupported"])


def _check_state(module: torch.nn.Module, program: Program) -> None:
    given = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for buffer in program.buffers:
        if buffer.role not in (Role.PARAMETER, Role.STATE):
            continue
        tensor = given.get(buffer.source)
        if tensor is None:
            raise UsageError(f"{type(module).__name__} has no {buffer.source}, which the optimised module had.")
        if (found := _mismatch(buffer, tensor, {})) is not None:
            raise UsageError(f"{type(module).__name__}.{buffer.source} {found}, as the optimised module had.")


def check_memory(module: torch.nn.Module, inputs: Sequence[Any], device: str) -> None:
    """Refuse before anything starts what can't fit: the judge keeps several copies of the module beside the caller's.

    Raises:
        EnvironmentProblem: with the bytes that are needed and those that are free.
    """
    state = [*module.parameters(), *module.buffers()]
    needed = COPIES * bytes_of([state, list(inputs)]) + (RESERVE_BYTES if is_cuda(device) else 0)
    free = torch.cuda.mem_get_info(device)[0] if is_cuda(device) else psutil.virtual_memory().available
    if needed > free:
        raise EnvironmentProblem(
            f"Optimising {type(module).__name__} needs about {needed / 2**30:.1f} GiB on {device} and "
            f"{free / 2**30:.1f} GiB are free; free some, or optimise a part of the module."
        )


def _report(result: SearchResult, accept: str) -> Report:
    ms, eager = result.ms, result.eager_ms
    faster = ms is not None and eager is not None and ms < eager * (1.0 - MARGIN)
    optimized = result.correct and (faster or accept == "correct")
    return Report(
        optimized=optimized,
        winner=result.winner,
        correct=result.correct,
        ms=ms,
        eager_ms=eager,
        compile_ms=result.compile_ms,
        actions=result.path,
        generated_share=result.generated_share,
        notes=result.notes,
        message=_message(result, optimized),
    )


def _message(result: SearchResult, optimized: bool) -> str:
    name, kept = result.problem.name, "the original module runs"
    if not result.correct:
        return f"{name}: no correct program was found, {kept}: {result.best.message}"
    if result.ms is None or result.eager_ms is None:
        using = "the generated program runs" if optimized else kept
        return f"{name}: a correct program was found but nothing was timed, since there is no GPU; {using}."
    rival = f", torch.compile {result.compile_ms:.4g} ms" if result.compile_ms is not None else ""
    times = f"{result.ms:.4g} ms, eager {result.eager_ms:.4g} ms{rival}"
    if not optimized:
        return f"{name}: nothing was faster than eager, {kept} ({times})."
    return f"{name}: {result.eager_ms / result.ms:.2f} times as fast as eager ({times})."


def _load(source: str) -> ModuleType:
    """The generated file as a module. Triton reads the text of its functions from the file."""
    path = cache_dir("modules") / f"mtmc_generated_{content_hash(source)[:16]}.py"
    if not path.exists():
        write_whole(path, source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise StoreError(f"The generated file {path} can't be imported; clear the cache folder and try again.")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
