"""Puts a search together: the problem, the judge of this machine, the policy by name, the store."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

from mtmc.actions import VOCABULARY_VERSION
from mtmc.capture import capture
from mtmc.capture.probe import is_convolution, with_rounding
from mtmc.codegen.module import CODEGEN_VERSION
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.data.hardware import H200, Hardware, detect
from mtmc.data.step import Versions
from mtmc.env.heuristic import Heuristic
from mtmc.env.policy import FirstLegal, Policy, Random
from mtmc.errors import EnvironmentProblem, IRError, ProblemError, UsageError
from mtmc.ir.codec import to_json
from mtmc.ir.forms import MatmulForm, match
from mtmc.ir.program import Kernel, Program
from mtmc.micro.coder import Coder
from mtmc.micro.compiler import CompilerCoder
from mtmc.problem.problem import Problem, load_problem
from mtmc.search.budget import Budget
from mtmc.search.loop import search
from mtmc.search.options import SearchOptions
from mtmc.search.recorder import Recorder
from mtmc.search.rehearsal import Rehearsal
from mtmc.search.result import Progress, SearchResult
from mtmc.settings import get_settings
from mtmc.store.store import Store
from mtmc.verify.device import is_cuda, resolve
from mtmc.verify.judge import Judge
from mtmc.verify.options import JudgeOptions
from mtmc.verify.pool import BuildFailed, WorkerPool
from mtmc.verify.worker import Fault

JUDGE_VERSION = "2"
"""Of the judging protocol; a verdict of another version is not reused."""
POLICIES = ("heuristic", "random", "first")

_pools: dict[str, WorkerPool] = {}


def make_policy(name: str, seed: int = 0) -> Policy:
    """A policy by the name that the command line knows it by."""
    match name:
        case "heuristic":
            return Heuristic()
        case "random":
            return Random(seed)
        case "first":
            return FirstLegal()
    raise UsageError(f"There is no policy {name!r}; choose one of {', '.join(POLICIES)}.")


def worker_pool(device: str, options: JudgeOptions) -> WorkerPool:
    """The judge's children of this process: importing torch takes longer than judging, so they serve every problem."""
    key = f"{device} {options.model_dump_json()}"
    if key not in _pools:
        _pools[key] = WorkerPool(device, options)
        atexit.register(_pools[key].close)
    return _pools[key]


def optimize_problem(
    problem: Problem | Path | str,
    *,
    steps: int = 8,
    seconds: float | None = None,
    policy: str | Policy = "heuristic",
    coder: Coder | None = None,
    seed: int = 0,
    patience: int = 2,
    allow: Sequence[str] = (),
    pure: bool = False,
    compiled: bool = True,
    compile_max: bool = False,
    device: str | None = None,
    judge_options: JudgeOptions | None = None,
    store: Store | None = None,
    fresh: bool = False,
    command: str = "",
    on_step: Callable[[Progress], None] = lambda step: None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> SearchResult:
    """The whole loop of mtmc on one problem.

    Without a GPU the judge runs a scaled-down copy in Triton's interpreter, every kernel is compiled for ``sm_90``, and
    times are the roofline's estimates for an H200.

    Args:
        problem: a Problem, or the path of a file in KernelBench format.
        steps: judged steps, at most.
        seconds: wall seconds of search, at most.
        policy: ``heuristic``, ``random``, ``first``, or a Policy.
        patience: slower steps in a row before the search goes back to the best.
        allow: lower precisions that are permitted; none is supported yet.
        pure: accept no library compute.
        compiled: measure torch.compile, and with ``compile_max`` its max-autotune mode.
        device: ``cuda:N`` or ``cpu``; default: ``MTMC_DEVICE``.
        store: an open store; default: the one in the cache folder.
        fresh: measure again what the store knows.

    Raises:
        ProblemError, CaptureError: the problem is not usable.
        StoreError, EnvironmentProblem: the cache folder or the device is not.
        JudgeError: not even the captured program could be judged.
    """
    if allow:
        raise UsageError(f"Allowing {', '.join(allow)} is not supported yet: results keep the reference's precision.")
    problem = problem if isinstance(problem, Problem) else load_problem(problem)
    device = resolve(device)
    card = detect(int(device.partition(":")[2] or 0)) if is_cuda(device) else None
    hardware = card or H200
    chooser = make_policy(policy, seed) if isinstance(policy, str) else policy
    coder = coder or CompilerCoder(hardware)
    options = judge_options or JudgeOptions()
    on_phase("capturing")
    captured = capture_quietly(problem)
    rehearsal = None if card else Rehearsal.of(problem, captured, get_settings().interpret_elements)
    judged = rehearsal.problem if rehearsal else problem
    search_options = SearchOptions(
        budget=Budget(steps, seconds),
        patience=patience,
        compiled=compiled and card is not None,
        max_autotune=compile_max and card is not None,
        pure=pure,
        rehearsal=rehearsal,
    )
    with ExitStack() as stack:
        recorder = Recorder(
            store or stack.enter_context(Store.open()),
            judged,
            versions=versions(),
            hardware=card,
            protocol=options.model_dump(mode="json", exclude=_NO_EFFECT),
            policy=chooser.name,
            coder=coder.name,
            seed=seed,
            search={
                "strategy": "greedy",
                "patience": patience,
                "steps": steps,
                "seconds": seconds,
                "pure": pure,
            },
            command=command,
            fresh=fresh,
        )
        pool = worker_pool(device, options)
        judge = stack.enter_context(Judge(judged, options=options, pool=pool))
        probe_s = 0.0
        if card is not None:
            captured, probe_s = probed(captured, judge)
        result = search(
            problem,
            policy=chooser,
            coder=coder,
            judge=judge,
            recorder=recorder,
            hardware=hardware,
            options=search_options,
            captured=captured,
            on_step=on_step,
            on_phase=on_phase,
        )
    if rehearsal is not None:
        on_phase("building the kernels at full size")
        result = _built(result, pool, hardware, rehearsal)
    return replace(result, gpu_lock_s=result.gpu_lock_s + probe_s)


def capture_quietly(problem: Problem) -> Program:
    """The Program. torch.export prints the graph of one that it refuses; the error after that says it in a sentence."""
    with redirect_stderr(StringIO()):
        return capture(problem)


def probed(program: Program, judge: Judge) -> tuple[Program, float]:
    """The Program with the precision of its products as the reference has it on the card, and the seconds that the card
    was held to measure that, in the judge's trusted process. Only convolutions that some form could generate are
    measured: for the rest it decides nothing."""
    open_ = tuple(kernel for kernel in program.kernels if _generatable(program, kernel))
    if not open_:
        return program, 0.0
    rounding, seconds = judge.measure("mtmc.capture.probe:measure", to_json(replace(program, kernels=open_)))
    return with_rounding(program, rounding), seconds


def _generatable(program: Program, kernel: Kernel) -> bool:
    if not is_convolution(kernel):
        return False
    try:
        form = match(program, kernel)
    except IRError:
        return False
    return isinstance(form, MatmulForm)


# Options of the judge that change neither a verdict nor a time.
_NO_EFFECT = {
    "forward_timeout_s", "build_timeout_s", "compile_timeout_s", "start_timeout_s",
    "cache_bytes", "transport", "build_workers",
}  # fmt: skip


def versions() -> Versions:
    """Of everything that mtmc itself decides with."""
    return Versions(vocabulary=str(VOCABULARY_VERSION), codegen=CODEGEN_VERSION, judge=JUDGE_VERSION)


def _built(result: SearchResult, pool: WorkerPool, hardware: Hardware, rehearsal: Rehearsal) -> SearchResult:
    """The final program's own kernels compiled: the judge built those of its small copy."""
    notes = (*result.notes, f"judged on a smaller copy ({', '.join(rehearsal.problem.flags)})")
    major, minor = hardware.capability
    try:
        builds = tuple(pool.build(result.candidate.source, result.candidate.signatures, 10 * major + minor))
    except (BuildFailed, Fault) as error:
        text = f"At full size: {error.sentence() if isinstance(error, Fault) else error}"
        failed = Evaluation(outcome=Outcome.BUILD_ERROR, stage="build", message=text)
        return replace(result, best=failed, notes=notes)
    return replace(result, best=result.best.model_copy(update={"builds": builds}), notes=notes)


def check_file(problem: Problem, path: Path, *, device: str | None = None) -> Evaluation:
    """The judge's verdict on a file that defines ``ModelNew``, under the full protocol.

    Raises:
        ProblemError: the file can't be read.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"The file {path} can't be read ({error}); give a file that defines ModelNew.") from None
    device = resolve(device)
    if not is_cuda(device) and problem.scaled(get_settings().interpret_elements).text != problem.text:
        raise EnvironmentProblem(f"Checking {path} needs a GPU: the inputs are too large for Triton's interpreter.")
    options = JudgeOptions()
    with Judge(problem, options=options, pool=worker_pool(device, options)) as judge:
        return judge.evaluate(Candidate(source=source), final=True)
