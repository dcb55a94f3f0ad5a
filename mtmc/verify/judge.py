"""The judge: one candidate in, one Evaluation out. It decides from raw numbers; no child ever does.

Stages in order: *static* (rules on the syntax tree), *build* (every kernel compiled, no card needed), then in one
locked region *run* and *compare* on every input set, and *time*. Each stage fills the trial or ends it with a
rejection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtmc.data import hardware
from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Baselines, Evaluation, KernelBuild, KernelTime, Outcome, Timing
from mtmc.errors import JudgeError, ProblemError
from mtmc.log import get_logger
from mtmc.problem import Problem
from mtmc.verify import device as devices
from mtmc.verify import inputs, static, timing
from mtmc.verify.measure import Stopwatch
from mtmc.verify.options import JudgeOptions
from mtmc.verify.pool import BuildFailed, WorkerPool
from mtmc.verify.verdicts import Errors, Rejected, judged_fault, state_difference
from mtmc.verify.worker import Fault, Worker

log = get_logger("verify")

SHARED_CACHE_BYTES = 3 << 30
"""What one judge may keep on a card that others use: float64 oracles of convolutions are slow to compute again."""
DEFAULT_CAPABILITY = 90
"""What kernels are compiled for where there is no GPU."""


@dataclass
class Trial:
    """What is known about a candidate so far."""

    candidate: Candidate
    final: bool
    floor_bytes: int | None
    estimate_ms: float | None
    started: float = field(default_factory=time.perf_counter)
    errors: Errors = field(default_factory=Errors)
    builds: list[KernelBuild] = field(default_factory=list)
    kernels: list[KernelTime] = field(default_factory=list)
    timing: Timing | None = None
    reference_timing: Timing | None = None
    compiled_timing: Timing | None = None
    shapes: dict[str, Any] = field(default_factory=dict)
    """What the reference said of ``seed0``."""
    peak_bytes: int | None = None
    build_s: float = 0.0
    gpu_lock_s: float = 0.0
    flags: list[str] = field(default_factory=list)

    def flag(self, text: str) -> None:
        if text not in self.flags:
            self.flags.append(text)

    def evaluation(self, outcome: Outcome, message: str = "", stage: str = "") -> Evaluation:
        timed = outcome in (Outcome.ACCEPTED, Outcome.IMPOSSIBLE_TIME)
        return Evaluation(
            outcome=outcome,
            message=message,
            stage=stage,
            errors=self.errors.stats(),
            timing=self.timing if timed else None,
            reference_timing=self.reference_timing,
            compiled_timing=self.compiled_timing,
            estimate_ms=None if timed and self.timing else self.estimate_ms,
            kernels=tuple(self.kernels) if timed else (),
            builds=tuple(self.builds),
            peak_bytes=self.peak_bytes,
            build_s=round(self.build_s, 4),
            judge_s=round(time.perf_counter() - self.started, 4),
            gpu_lock_s=round(self.gpu_lock_s, 4),
            flags=tuple(self.flags),
        )


class Judge:
    """Judges candidates for one problem. Not thread-safe; a context manager.

    Args:
        problem: what the candidates replace.
        device: ``cuda:N``, ``cpu``, or None for ``MTMC_DEVICE``.
        options: see ``JudgeOptions``.
        pool: children to use and to leave running at the end; default: own ones, ended by ``close``.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        device: str | None = None,
        options: JudgeOptions | None = None,
        pool: WorkerPool | None = None,
    ) -> None:
        self.problem = problem
        self.options = options or (pool.options if pool else JudgeOptions())
        self._own_pool = pool is None
        self.pool = pool or WorkerPool(device, self.options)
        self.device = self.pool.device
        self.timed = devices.is_cuda(self.device)
        index = int(self.device.partition(":")[2] or 0)
        self.hardware = hardware.detect(index) if self.timed else None
        self._opened: tuple[int, dict[str, Any]] | None = None
        self._compiled: dict[str, str] = {}
        self._stopwatch = Stopwatch(self.options)
        self.pool.start()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free what the children hold for this problem; end them if they are the judge's own."""
        if self._own_pool:
            self.pool.close()
            return
        for worker in (self.pool.reference, self.pool.candidate):
            if worker.pid is not None:
                try:
                    worker.call("reset", self.options.forward_timeout_s)
                except Fault as fault:
                    log.debug("reset: %s", fault)
                    worker.kill()

    # -- baselines

    def baselines(self, *, compiled: bool = True, max_autotune: bool = False) -> Baselines:
        """Eager and torch.compile, interleaved in one run; empty but for ``eager_error`` where there is no GPU.

        Raises:
            ProblemError: the reference itself does not run.
        """
        self.pool.reference.wait_ready()
        held = 0.0
        notes: list[str] = []
        with devices.gpu_lock(self.device) as lease:
            try:
                self._reference_call("prepare", name="seed0")
                eager_error = self._reference_call("eager_error", name="seed0")
                self._release_reference()
            except Fault as fault:
                self.pool.reference.kill()  # nothing of it is of use, and the card is others'
                raise ProblemError(f"{self.problem.name}: the reference does not run: {fault.sentence()}.") from fault
        held += lease.seconds
        if not self.timed:
            why = "there is no GPU to compile for" if compiled else ""
            return Baselines(eager_error=eager_error, compile_error=why)
        for mode in [*(["default"] if compiled else []), *(["max-autotune"] if max_autotune else [])]:
            seconds, note = self._compile(mode)
            held += seconds
            notes += [note] if note else []
        with devices.gpu_lock(self.device) as lease:
            names = ["eager", "eager_reduced", *self._compiled.values()]
            try:
                found = self._stopwatch.reference_only(self._reference, names, self.options.step_budget)
                self._release_reference()
            except Fault as fault:
                self.pool.reference.kill()
                message = f"{self.problem.name}: the reference can't be timed: {fault.sentence()}."
                raise JudgeError(message) from fault
        return Baselines(
            eager=found.get("eager"),
            eager_reduced=found.get("eager_reduced"),
            compiled=found.get("compiled"),
            compiled_max=found.get("compiled_max"),
            compile_error="; ".join(notes),
            eager_error=eager_error,
            gpu_lock_s=round(held + lease.seconds, 4),
        )

    def measure(self, function: str, argument: str) -> tuple[Any, float]:
        """Run ``module:name(argument, device)`` in the trusted process, the card held: its answer, and the seconds.

        Raises:
            JudgeError: it failed there.
        """
        self.pool.reference.wait_ready()
        with devices.gpu_lock(self.device) as lease:
            try:
                value = self.pool.reference.call(
                    "measure", self.options.reference_timeout_s, function=function, argument=argument
                )
            except Fault as fault:
                raise JudgeError(f"{function} failed: {fault.sentence()}.") from fault
        return value, lease.seconds

    def _compile(self, mode: str) -> tuple[float, str]:
        """Compile in the reference's child; answers (seconds of lock, why it failed)."""
        shared = self.options.shared_card
        try:
            found = self._reference_call(
                "compile", timeout_s=self.options.compile_timeout_s, mode=mode,
                lock_path=devices.lock_file(self.device),
                hold_above=(7 << 30) if shared else (16 << 30), set_name="seed0",
            )  # fmt: skip
        except Fault as fault:
            log.info("torch.compile (%s) of %s: %s", mode, self.problem.name, fault)
            return 0.0, f"torch.compile ({mode}): {fault.sentence()}"
        self._compiled[mode] = "compiled" if mode == "default" else "compiled_max"
        return found["gpu_lock_s"], ""

    # -- candidates

    def evaluate(
        self,
        candidate: Candidate,
        *,
        final: bool = False,
        floor_bytes: int | None = None,
        estimate_ms: float | None = None,
    ) -> Evaluation:
        """The verdict on one candidate.

        Args:
            final: all input sets and a longer, more precise timing, with the compiled baselines in the same run.
            floor_bytes: bytes that any correct program must move; a time below their floor is impossible.
            estimate_ms: the caller's roofline estimate, kept where nothing is measured.

        Raises:
            JudgeError: the judge itself can't work (a child that does not start, say).
        """
        trial = Trial(candidate, final, floor_bytes, estimate_ms)
        stages: list[tuple[str, Callable[[Trial], None]]] = [
            ("static", self._static),
            ("build", self._build),
            ("run", self._on_card),
        ]
        for name, stage in stages:
            try:
                stage(trial)
            except Rejected as rejected:
                return trial.evaluation(rejected.outcome, rejected.message, rejected.stage or name)
        return trial.evaluation(Outcome.ACCEPTED)

    def _static(self, trial: Trial) -> None:
        try:
            findings = static.find(trial.candidate.source)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            at = f" (line {line})" if line else ""
            raise Rejected(Outcome.BUILD_ERROR, f"The source does not parse: {error}{at}.") from None
        if not self.options.static_rules:
            return
        for finding in findings:
            if finding.rule.severity == "reject":
                raise Rejected(Outcome.STATIC_REJECT, finding.sentence())
            trial.flag(finding.sentence())

    def _build(self, trial: Trial) -> None:
        if not trial.candidate.signatures:
            return
        started = time.perf_counter()
        major, minor = self.hardware.capability if self.hardware else divmod(DEFAULT_CAPABILITY, 10)
        try:
            trial.builds = self.pool.build(trial.candidate.source, trial.candidate.signatures, 10 * major + minor)
        except BuildFailed as failed:
            raise Rejected(Outcome.BUILD_ERROR, str(failed)) from None
        except Fault as fault:
            outcome = Outcome.TIMEOUT if fault.kind == "timeout" else Outcome.BUILD_ERROR
            raise Rejected(outcome, f"The build failed: {fault.sentence()}.") from None
        finally:
            trial.build_s = time.perf_counter() - started

    def _on_card(self, trial: Trial) -> None:
        """Everything that launches on the card, under one lock."""
        for worker in (self.pool.reference, self.pool.candidate):
            worker.wait_ready()  # importing torch takes seconds that nobody else should wait for
        lease = devices.Lease()
        try:
            with devices.gpu_lock(self.device) as lease:
                try:
                    self._run_and_compare(trial)
                    if self.timed:
                        self._time(trial)
                finally:
                    self._release(trial)
        finally:
            trial.gpu_lock_s += lease.seconds

    def _run_and_compare(self, trial: Trial) -> None:
        names = self.options.final_sets if trial.final else self.options.step_sets
        if trial.final and self.problem.batch_limit:
            names += inputs.BATCH_SETS
        opened = self._open()
        child = self.pool.ready_candidate()
        self._load(child, trial.candidate, opened, trial)
        for name in names:
            self._one_set(child, trial, name)
        if rejected := trial.errors.rejection():
            raise rejected

    def _load(self, child: Worker, candidate: Candidate, opened: dict[str, Any], trial: Trial) -> None:
        """Build the candidate's model and give it the reference's parameters."""
        limit = self.options.forward_timeout_s
        with judged_fault("run", importing=True):
            child.call("load", limit, source=candidate.source, entry=candidate.entry)
        with judged_fault("run"):
            made = child.call(
                "construct", limit, arguments=opened["arguments"], values=opened["values"], seed=self.options.seed
            )
        if difference := state_difference(opened["saved"], made["saved"]):
            raise Rejected(Outcome.WRONG_STRUCTURE, f"{candidate.entry} has other parameters than Model: {difference}.")
        saved = list(opened["saved"])
        hidden = [n for n, meta in opened["hidden"].items() if made["hidden"].get(n, {}).get("shape") == meta["shape"]]
        if missing := sorted(set(opened["hidden"]) - set(hidden)):
            trial.flag(f"the candidate does not keep {', '.join(missing)}")
        metas = [opened["saved"][n] for n in saved] + [opened["hidden"][n] for n in hidden]
        with judged_fault("run"):
            slot = child.call("allocate_state", limit, metas=metas)
        self._trusted("push_state", names=[*saved, *hidden], slot=slot)
        with judged_fault("run"):
            child.call("take_state", limit, metas=metas, saved=saved, hidden=hidden)

    def _one_set(self, child: Worker, trial: Trial, name: str) -> None:
        limit = self.options.forward_timeout_s
        try:
            prepared = self._reference_call("prepare", name=name)
        except Fault as fault:
            if name == "seed0":
                message = f"The reference fails on its own inputs: {fault.sentence()}."
                raise Rejected(Outcome.REFERENCE_ERROR, message) from None
            trial.flag(f"input set {name} skipped: the reference raises on it")
            return
        if name == "seed0":
            trial.shapes = prepared
        for flag in prepared["flags"]:
            trial.flag(flag)
        with judged_fault("run", name):
            slots = child.call("allocate", limit, key=name, metas=prepared["metas"])
        self._trusted("push_inputs", name=name, slots=slots)
        with judged_fault("run", name):
            child.call("take_inputs", limit, key=name, spec=prepared["spec"])
            reply = child.call("forward", limit, key=name, seed=self.options.seed + 7)
        trial.peak_bytes = reply.pop("peak") if trial.peak_bytes is None else trial.peak_bytes
        marks = {str(k): v for k, v in self.options.index_outputs.items()}
        found = self._trusted("compare", name=name, reply=reply, index_outputs=marks)
        with judged_fault("run", name):
            child.call("after_forward", limit, keep=["seed0"])
        if "structure" in found:
            raise Rejected(Outcome.WRONG_STRUCTURE, f"On input set {name}: {found['structure']}.")
        if found["mutated"]:
            raise Rejected(Outcome.MUTATED_INPUT, f"On input set {name}: {found['mutated']}.")
        if found["strides"] and self.options.strides == "reject":
            raise Rejected(Outcome.WRONG_STRUCTURE, f"On input set {name}: {found['strides'][0]}.")
        for note in found["strides"]:
            trial.flag(note)
        for missing in found["missing"]:
            trial.flag(f"state {missing} can't be compared: the candidate keeps it otherwise or not at all")
        for output, row in found["rows"].items():
            trial.errors.add(name, output, row)

    def _time(self, trial: Trial) -> None:
        budget = self.options.final_budget if trial.final else self.options.step_budget
        variants = ["eager", *(self._compiled.values() if trial.final else [])]
        with judged_fault("time"):
            sides = self._stopwatch.against(self._reference, self.pool.candidate, variants, trial.shapes, budget)
        own = sides.pop("candidate")
        for doubt in timing.doubts(own, list(sides.values())):
            trial.flag(doubt)
        trial.timing = own.timing
        trial.reference_timing = sides["eager"].timing
        if "compiled" in sides:
            trial.compiled_timing = sides["compiled"].timing
        if trial.candidate.marked_source and self.options.kernel_repeats:
            try:
                trial.kernels = self._stopwatch.kernels(self.pool.candidate, trial.candidate.marked_source)
            except Fault as fault:
                trial.flag(f"no times by kernel: {fault.sentence()}")
        self._check_floor(trial)

    def _check_floor(self, trial: Trial) -> None:
        if trial.floor_bytes is None or self.hardware is None or trial.timing is None:
            return
        # The last outputs written may stay in the cache: only what does not fit in it must have moved.
        moved = max(trial.floor_bytes - self.hardware.l2_bytes, 0)
        floor_ms = moved / self.hardware.peak_bandwidth_Bps * 1e3
        if trial.timing.median_ms < floor_ms:
            raise Rejected(
                Outcome.IMPOSSIBLE_TIME,
                f"{trial.timing.median_ms:.4f} ms is less than the {floor_ms:.4f} ms that {moved} compulsory bytes "
                f"take at {self.hardware.peak_bandwidth_Bps / 1e12:.2f} TB/s: something was not computed.",
                stage="time",
            )

    # -- the reference's child

    @property
    def _reference(self) -> Worker:
        self._open()
        return self.pool.reference

    def _open(self) -> dict[str, Any]:
        """The reference loaded in its child, again after that was replaced; call it inside the card's lock."""
        worker = self.pool.reference
        worker.start()
        if self._opened is None or self._opened[0] != worker.starts:
            self._compiled.clear()
            try:
                value = worker.call(
                    "open", self.options.reference_timeout_s, problem=self.problem.model_dump(mode="json"),
                    seed=self.options.seed, cache_bytes=self.options.cache_bytes,
                )  # fmt: skip
            except Fault as fault:
                if fault.type_name == "ProblemError":
                    raise ProblemError(fault.text) from fault
                raise ProblemError(f"{self.problem.name}: the reference can't be built: {fault.sentence()}.") from fault
            self._opened = (worker.starts, value)
        return self._opened[1]

    def _reference_call(self, method: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """Call the reference's child; faults are the caller's to judge."""
        return self._reference.call(method, timeout_s or self.options.reference_timeout_s, **arguments)

    def _trusted(self, method: str, **arguments: Any) -> Any:
        """A call that fails only if the judge does."""
        try:
            return self._reference_call(method, **arguments)
        except Fault as fault:
            if fault.kind == "oom":
                message = f"{method}: the results do not fit on the card beside the reference's."
                raise Rejected(Outcome.OUT_OF_MEMORY, message, stage="compare") from None
            raise JudgeError(f"The reference process failed in {method}: {fault.sentence()}.") from fault

    def _release(self, trial: Trial) -> None:
        """Give the card's memory back at the end of a locked region."""
        child = self.pool.candidate
        if child.pid is not None:
            try:
                child.call("release", self.options.forward_timeout_s)
            except Fault as fault:
                trial.flag(f"the candidate's process had to be replaced: {fault.text}")
                child.kill()
                child.start()
        self._release_reference()

    def _release_reference(self) -> None:
        if self.pool.reference.pid is not None:
            shared = self.options.shared_card
            keep = min(self.options.cache_bytes, SHARED_CACHE_BYTES) if shared else self.options.cache_bytes
            self.pool.reference.call("release", self.options.forward_timeout_s, keep_bytes=keep, keep_module=not shared)
