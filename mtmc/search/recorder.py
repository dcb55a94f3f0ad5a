"""Writes what a search does to the store: the run, the episode, every step as it is judged.

A store that fails in the middle of a search is logged once and then left alone: what was found is worth more than its
record. Opening the store, where an unusable cache folder shows, is the caller's and does raise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mtmc.data.evaluation import Baselines, Evaluation
from mtmc.data.hardware import Hardware
from mtmc.data.step import (
    Episode,
    RunInfo,
    Step,
    Versions,
    content_hash,
    library_versions,
    measure_key,
    new_id,
)
from mtmc.errors import StoreError
from mtmc.ir.codec import structural_hash, to_json
from mtmc.ir.program import Program
from mtmc.log import get_logger
from mtmc.problem.problem import Problem
from mtmc.search.node import Node
from mtmc.store.store import Store

log = get_logger(__name__)


class Recorder:
    """The store as one search sees it. Without a store it still answers from its own memory."""

    def __init__(
        self,
        store: Store | None,
        problem: Problem,
        *,
        versions: Versions,
        hardware: Hardware | None,
        protocol: dict[str, Any],
        policy: str,
        coder: str,
        seed: int,
        search: dict[str, Any],
        run_id: str = "",
        command: str = "",
        fresh: bool = False,
    ) -> None:
        """``fresh``: measure again what the store knows. ``run_id``: of a run that the caller already recorded."""
        self.store = store
        self.problem = problem
        self.versions = versions
        self.hardware = hardware
        self.protocol = protocol
        self.libraries = library_versions()
        self.fresh = fresh
        self._known: dict[str, Evaluation] = {}
        self._written: list[tuple[Program, str, str]] = []
        now = time.time()
        self._run = RunInfo(
            run_id=run_id or new_id("run"),
            started=now,
            command=command,
            versions=versions,
            hardware=hardware,
            libraries=self.libraries,
        )
        self._episode = Episode(
            episode_id=new_id("episode", problem.name),
            run_id=self._run.run_id,
            problem_key=problem.key,
            problem=problem.name,
            policy=policy,
            coder=coder,
            seed=seed,
            search=search,
            started=now,
            updated=now,
        )
        if not run_id:
            self._try("the run", lambda s: s.record_run(self._run))
        self._try("the episode", lambda s: s.record_episode(self._episode))

    def key(self, source: str, final: bool = False) -> str:
        """The key of a measurement of ``source`` on this problem, card and protocol."""
        protocol = {**self.protocol, "final": final}
        return measure_key(source, self.problem.key, self.hardware, self.libraries, self.versions.judge, protocol)

    def lookup(self, source: str) -> Evaluation | None:
        """The verdict on an equal candidate, of this search or (unless ``fresh``) of an earlier one."""
        key = self.key(source)
        if key in self._known:
            return self._known[key]
        if self.store is None or self.fresh:
            return None
        try:
            return self.store.lookup(key)
        except StoreError as error:
            log.warning("the store can't be read: %s", error)
            return None

    def remember(self, source: str, evaluation: Evaluation) -> None:
        self._known[self.key(source)] = evaluation

    def step(
        self,
        *,
        index: int,
        parent: Program,
        path: tuple[str, ...],
        child: Program | None,
        source: str,
        evaluation: Evaluation | None,
        measured: bool,
        actions: Sequence[str] = (),
        actions_cut: int = 0,
        action: str = "",
        probabilities: Sequence[float] = (),
        observation: str = "",
        became: tuple[bool, bool] = (False, False),
        times_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
        seeds: tuple[int, ...] = (),
    ) -> None:
        """Keep one step. ``times_s``: deciding, coding, the whole step."""
        if self.store is None:
            return
        parent_text, parent_hash = self._text(parent)
        child_text, child_hash = self._text(child) if child else ("", "")
        step = Step(
            run_id=self._run.run_id,
            episode_id=self._episode.episode_id,
            problem_key=self.problem.key,
            index=index,
            path=path,
            versions=self.versions,
            parent=parent_text,
            parent_hash=parent_hash,
            child=child_text,
            child_hash=child_hash,
            actions=tuple(actions),
            actions_cut=actions_cut,
            action=action,
            policy=self._episode.policy,
            probabilities=tuple(probabilities),
            observation=content_hash(observation) if observation else "",
            coder=self._episode.coder,
            source=source,
            candidate_key=content_hash(source) if source else "",
            measure_key=self.key(source) if source else "",
            measured=measured,
            evaluation=evaluation,
            became_current=became[0],
            became_best=became[1],
            seeds=seeds,
            hardware=self.hardware,
            libraries=self.libraries,
            decide_s=times_s[0],
            code_s=times_s[1],
            wall_s=times_s[2],
            created=time.time(),
        )
        self._try("a step", lambda s: s.record_step(step))

    def _text(self, program: Program) -> tuple[str, str]:
        """JSON and structural hash; a step's child is the next one's parent, and large programs take a while."""
        for known, text, key in self._written:
            if known is program:
                return text, key
        self._written = [*self._written[-3:], (program, to_json(program), structural_hash(program))]
        return self._written[-1][1:]

    def final(self, source: str, evaluation: Evaluation) -> None:
        """Keep the verdict of the full protocol."""
        self._try("the final check", lambda s: s.record_measurement(self.key(source, final=True), evaluation))

    def end(
        self,
        *,
        state: str,
        message: str = "",
        start: Node | None = None,
        best: Node | None = None,
        final: Evaluation | None = None,
        baselines: Baselines | None = None,
        steps: int = 0,
        wall_s: float = 0.0,
    ) -> None:
        """Close the episode: ``finished``, ``interrupted`` or ``failed``."""
        row = self._episode.model_copy(
            update={
                "state": state,
                "message": message,
                "start_hash": structural_hash(start.program) if start else "",
                "best_hash": structural_hash(best.program) if best else "",
                "best_path": best.path if best else (),
                "start": start.evaluation if start else None,
                "best": final or (best.evaluation if best else None),
                "baselines": baselines,
                "steps": steps,
                "wall_s": wall_s,
                "updated": time.time(),
            }
        )
        self._try("the end of the episode", lambda s: s.record_episode(row))

    def _try(self, what: str, write: Any) -> None:
        if self.store is None:
            return
        try:
            write(self.store)
        except StoreError as error:
            log.warning("%s was not kept, and nothing after it will be: %s", what, error)
            self.store = None
