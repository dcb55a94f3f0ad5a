"""What the store keeps: every judged step, the episode it belongs to and the run that made it.

A policy is trained on these rows, so a step holds everything that was known when it was decided and judged.
Programs are opaque text here: ``data`` stands below ``ir``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import uuid
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Literal

from pydantic import Field, model_validator

from mtmc.data.evaluation import Baselines, Evaluation
from mtmc.data.hardware import Hardware
from mtmc.data.record import Record

SCHEMA = 1
"""Version of the records in this file. A new field with a default does not change it."""

_LIBRARIES = (
    "mtmc",
    "torch",
    "triton",
    "numpy",
    "nvidia-cudnn-cu12",
    "nvidia-cublas-cu12",
    "nvidia-cudnn-cu13",
    "nvidia-cublas",
)
# What decides the machine code and the reference's result: a change of any of these invalidates measurements.
_TOOLCHAIN = tuple(name for name in _LIBRARIES if name not in ("mtmc", "numpy"))


def content_hash(text: str) -> str:
    """blake2b of UTF-8 text, 16 bytes, hex: the key of texts and rows everywhere in mtmc."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def library_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that matter, without importing them."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def measure_key(
    source: str,
    inputs: str,
    hardware: Hardware | None,
    libraries: Mapping[str, str],
    judge: str,
    protocol: Mapping[str, Any],
) -> str:
    """The key under which a measurement may be reused.

    Args:
        source: the candidate's whole file.
        inputs: key of the problem: its reference, buffers and input sets.
        hardware: the card that judges; None on a machine without one.
        libraries: ``library_versions()``; only what decides machine code or the reference counts.
        judge: the judge's version.
        protocol: options that change a verdict or a time (seeds, trials, permissions), JSON values.
    """
    parts = {
        "source": source,
        "inputs": inputs,
        "hardware": hardware and {"name": hardware.name, "driver": hardware.driver},
        "libraries": {name: libraries[name] for name in _TOOLCHAIN if name in libraries},
        "judge": judge,
        "protocol": dict(protocol),
    }
    return content_hash(json.dumps(parts, sort_keys=True, separators=(",", ":")))


class Versions(Record):
    """Versions of what mtmc itself decided with; a change to one invalidates only what it made."""

    schema_version: int = SCHEMA
    vocabulary: str
    """Of the action generator: which candidates are proposed, in which order."""
    codegen: str
    """Of the templates and renderers."""
    judge: str


class Step(Record):
    """One decision: the state, all choices, the one taken, and the verdict on what it made."""

    run_id: str
    episode_id: str
    problem_key: str
    index: int = Field(ge=0)
    """Position in the episode, from 0. Position 0 may be the untouched program, with an empty action."""
    path: tuple[str, ...]
    """Action lines from the captured program to ``parent``: the steps that became current."""
    versions: Versions

    parent: str
    """The Program before, as JSON text that reads back."""
    parent_hash: str
    """Structural hash: without names and source lines."""
    child: str = ""
    """The Program after; empty where the action gave none (``stop``, a coder that failed)."""
    child_hash: str = ""

    actions: tuple[str, ...]
    """The whole ordered candidate list as printed lines."""
    actions_cut: int = Field(default=0, ge=0)
    """How many further legal actions the quota cut from the list."""
    action: str
    """The line that was taken."""
    policy: str
    """Name and version of the policy."""
    probabilities: tuple[float, ...] = ()
    """The policy's probability for each entry of ``actions``; empty for a policy that has none."""
    observation: str = ""
    """Hash of the text the policy saw, so that a replay can be checked; empty for policies that read the
    state."""

    coder: str = ""
    source: str = ""
    """The rendered file that was judged."""
    candidate_key: str = ""
    """``Candidate.key`` of ``source``."""
    measure_key: str = ""
    measured: bool = True
    """False where ``evaluation`` came from the store instead of the device."""
    evaluation: Evaluation | None = None
    """The whole program's verdict; None where nothing was judged (``stop``)."""
    local: Evaluation | None = None
    """The changed kernel judged alone, where that was done."""
    became_current: bool = False
    became_best: bool = False

    seeds: tuple[int, ...] = ()
    """Seeds of the policy and of the judge's input sets."""
    hardware: Hardware | None = None
    clock_mhz: int | None = None
    """SM clock while timing."""
    libraries: dict[str, str] = Field(default_factory=dict)
    decide_s: float = 0.0
    """Proposing and choosing, seconds."""
    code_s: float = 0.0
    """Rewriting and rendering, seconds."""
    wall_s: float = 0.0
    """The whole step, seconds."""
    created: float = 0.0
    """Unix seconds."""

    @model_validator(mode="after")
    def _consistent(self) -> Step:
        if self.probabilities and len(self.probabilities) != len(self.actions):
            raise ValueError(f"{len(self.probabilities)} probabilities for {len(self.actions)} actions")
        if self.source and self.candidate_key != content_hash(self.source):
            raise ValueError("candidate_key is not the hash of source")
        if bool(self.child) != bool(self.child_hash):
            raise ValueError("child and child_hash come together")
        return self


class Episode(Record):
    """One search on one problem. Written when it starts and again when it ends; the later row counts."""

    episode_id: str
    run_id: str
    problem_key: str
    problem: str
    """Name for people, such as a file stem."""
    policy: str
    coder: str
    seed: int = 0
    search: dict[str, Any] = Field(default_factory=dict)
    """Options of the search: strategy, patience, budget in steps and seconds."""
    start_hash: str = ""
    best_hash: str = ""
    best_path: tuple[str, ...] = ()
    """Action lines from the captured program to the best one."""
    state: Literal["running", "finished", "interrupted", "failed"] = "running"
    message: str = ""
    """Why it failed, where it did."""
    baselines: Baselines | None = None
    start: Evaluation | None = None
    """The untouched program, rendered and judged."""
    best: Evaluation | None = None
    steps: int = 0
    wall_s: float = 0.0
    started: float
    """Unix seconds."""
    updated: float
    """Unix seconds; orders the rows of one episode."""


class RunInfo(Record):
    """One command that made episodes."""

    run_id: str
    started: float
    """Unix seconds."""
    command: str
    """As typed."""
    flags: dict[str, Any] = Field(default_factory=dict)
    versions: Versions
    hardware: Hardware | None = None
    libraries: dict[str, str] = Field(default_factory=dict)


def new_id(*parts: object) -> str:
    """A fresh identifier for a run or an episode: the parts, for people, then twelve random hex digits."""
    return "-".join([*(str(part) for part in parts), uuid.uuid4().hex[:12]])
