"""Which object serves a child process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any


def create(role: str, device: str, folder: Path) -> Any:
    """The role's object. Each imports only what it needs; the candidate's never loads a problem."""
    made = _made(role, device, folder)
    # A collection walks every object of torch, half a second each time; what exists now stays, so never look again.
    gc.collect()
    gc.freeze()
    return made


def _made(role: str, device: str, folder: Path) -> Any:
    match role:
        case "reference":
            from mtmc.verify.reference import Reference

            return Reference(device, folder)
        case "candidate":
            from mtmc.verify import interpreter
            from mtmc.verify.child import Child

            if device == "cpu":
                interpreter.repair()
            return Child(device, folder)
        case "build":
            from mtmc.verify.build import Builder

            return Builder(folder)
    raise ValueError(f"unknown role {role!r}")
