"""``mtmc optimize``: the whole loop on one file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtmc.errors import EnvironmentProblem, Exit

if TYPE_CHECKING:
    from rich.console import Console

    from mtmc.data.evaluation import Evaluation
    from mtmc.search.result import Progress, SearchResult


def register(app: typer.Typer) -> None:
    app.command("optimize")(optimize)


def optimize(
    file: Annotated[Path, typer.Argument(help="A file with Model, get_inputs and get_init_inputs.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: <stem>_new.py here.")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Judged steps, at most.")] = 8,
    seconds: Annotated[float | None, typer.Option(min=1, help="Seconds of search, at most; default: no limit.")] = None,
    policy: Annotated[str, typer.Option(help="Who chooses: heuristic, random or first.")] = "heuristic",
    patience: Annotated[int, typer.Option(min=0, help="Slower steps in a row before it goes back to the best.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the random policy.")] = 0,
    pure: Annotated[bool, typer.Option("--pure", help="Accept no library compute.")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; default: MTMC_DEVICE.")] = None,
    no_compile: Annotated[bool, typer.Option("--no-compile-baseline", help="Do not measure torch.compile.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what the store knows.")] = False,
    check: Annotated[
        Path | None, typer.Option(metavar="NEW", help="Only judge this file, which defines ModelNew.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout; progress goes to stderr.")
    ] = False,
) -> None:
    """Search for faster kernels that compute the same, and write them as one plain file.

    Exits with 0 where the result is faster than eager and torch.compile (without a GPU: where it is correct), with 1
    where nothing was, with 130 after Ctrl-C, which keeps the best so far.
    """
    from rich.console import Console

    from mtmc.problem import load_problem
    from mtmc.search.driver import check_file, make_policy, optimize_problem
    from mtmc.search.output import check_writable, write_whole, written_source
    from mtmc.store.store import Store

    problem = load_problem(file)
    console = Console(stderr=as_json)
    require_triton()
    quiet_torch()
    if check is not None:
        raise typer.Exit(_show_check(console, check_file(problem, check, device=device), as_json))
    target = out or Path(f"{file.stem}_new.py")
    check_writable(target)
    chooser = make_policy(policy, seed)
    with Store.open() as store, _View(console) as view:
        result = optimize_problem(
            problem,
            steps=steps,
            seconds=seconds,
            policy=chooser,
            seed=seed,
            patience=patience,
            pure=pure,
            compiled=not no_compile,
            device=device,
            store=store,
            fresh=fresh,
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            on_step=view.step,
            on_phase=view.phase,
        )
    if result.correct:
        write_whole(
            target,
            written_source(result, shlex.join(["mtmc", "optimize", str(file), "--check", str(target)])),
        )
    if as_json:
        typer.echo(_json(result, target if result.correct else None))
    _show_end(console, result, target)
    raise typer.Exit(_exit_code(result))


def quiet_torch() -> None:
    """Keep torch's own warnings and graph dumps off the terminal; ``mtmc -v`` shows them."""
    import logging
    from importlib import import_module

    import_module("torch")  # sets its own levels when imported, so ours come after
    if logging.getLogger("mtmc").getEffectiveLevel() >= logging.WARNING:
        for name in ("torch.export", "torch._export", "torch.fx", "torch._dynamo", "torch._inductor"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def require_triton() -> None:
    """Raises EnvironmentProblem where Triton is not installed: nothing could be generated or checked."""
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise EnvironmentProblem(
            "Triton is not installed, so nothing can be generated or checked; pip install triton (on Linux), "
            "or run `mtmc doctor`."
        )


class _View:
    """Live progress: one line a step, and what is going on now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting")
        self._best: float | None = None

    def __enter__(self) -> _View:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def phase(self, text: str) -> None:
        self._status.update(text)

    def step(self, step: Progress) -> None:
        from mtmc.report.progress import step_line
        from mtmc.search.result import SKETCHED

        if step.outcome == SKETCHED:
            text = f"{step.index:>3}  {step.action}  judged with the next step"
            self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
            return
        if step.became_best and step.speedup is not None:
            self._best = step.speedup
        self._console.print(step_line(step, self._best), soft_wrap=True)


def _exit_code(result: SearchResult) -> Exit:
    if result.interrupted:
        return Exit.INTERRUPTED
    if not result.correct:
        return Exit.NOTHING_FASTER
    return Exit.FINE if result.winner in (None, "mtmc") else Exit.NOTHING_FASTER


def _show_end(console: Console, result: SearchResult, target: Path) -> None:
    from mtmc.report.progress import winner_line

    for note in (*result.problem.flags, *result.notes):
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    if result.ms is None:
        _show_builds(console, result.best, result.hardware.target)
    if result.correct:
        console.print(f"wrote {target}", markup=False, highlight=False, soft_wrap=True)
    console.print(winner_line(result), soft_wrap=True)


def _show_builds(console: Console, evaluation: Evaluation, target: str) -> None:
    """Without a GPU: what the compiler says about each kernel."""
    for build in evaluation.builds:
        console.print(
            f"built for {target}: {build.kernel} {build.function}, {build.registers} registers, "
            f"{build.spills} bytes spilled, {build.shared_bytes} bytes shared",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _json(result: SearchResult, target: Path | None) -> str:
    import json
    from dataclasses import asdict

    best = result.best
    fields: dict[str, Any] = {
        "problem": result.problem.name,
        "output": str(target) if target else None,
        "outcome": best.outcome,
        "correct": result.correct,
        "winner": result.winner,
        "ms": result.ms,
        "eager_ms": result.eager_ms,
        "compile_ms": result.compile_ms,
        "estimate_ms": best.estimate_ms,
        "pure": result.pure,
        "generated_share": result.generated_share,
        "actions": result.path,
        "steps": [asdict(step) for step in result.progress],
        "errors": [error.model_dump() for error in best.errors],
        "builds": [build.model_dump() for build in best.builds],
        "message": best.message,
        "notes": [*result.problem.flags, *result.notes],
        "flags": best.flags,
        "interrupted": result.interrupted,
        "hardware": result.hardware.name,
        "wall_s": result.wall_s,
        "gpu_lock_s": result.gpu_lock_s,
    }
    return json.dumps(fields)


def _show_check(console: Console, evaluation: Evaluation, as_json: bool) -> Exit:
    from mtmc.data.evaluation import Outcome

    if as_json:
        typer.echo(evaluation.model_dump_json())
    accepted = evaluation.outcome is Outcome.ACCEPTED
    times = f", {evaluation.ms:.4g} ms, {evaluation.speedup or 0:.2f}x eager" if evaluation.ms is not None else ""
    text = "accepted" + times if accepted else f"{evaluation.outcome}: {evaluation.message}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return Exit.FINE if accepted else Exit.NOTHING_FASTER
