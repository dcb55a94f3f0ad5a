"""Puts a search together: the problem, the judge of this machine, the policy by name, the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mtmc.actions import VOCABULARY_VERSION
from mtmc.codegen.module import CODEGEN_VERSION
from mtmc.data.hardware import H200, Hardware, detect
from mtmc.data.step import Versions
from mtmc.env.heuristic import Heuristic
from mtmc.env.policy import FirstLegal, Policy, Random
from mtmc.errors import UsageError
from mtmc.micro.coder import Coder
from mtmc.micro.compiler import CompilerCoder
from mtmc.problem.problem import Problem, load_problem
from mtmc.search.budget import Budget
from mtmc.search.loop import SearchOptions, search
from mtmc.search.recorder import Recorder
from mtmc.search.result import Progress, SearchResult
from mtmc.store.store import Store

POLICIES = ("heuristic", "random", "first")


def make_policy(name: str, seed: int = 0) -> Policy:
    """A policy by the name the command line knows it by."""
    match name:
        case "heuristic":
            return Heuristic()
        case "random":
            return Random(seed)
        case "first":
            return FirstLegal()
    raise UsageError(f"There is no policy {name!r}; choose one of {', '.join(POLICIES)}.")
