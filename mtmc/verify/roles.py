"""Which object serves a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def create(role: str, device: str, folder: Path) -> Any:
    """The role's object. Each imports only what it needs; the candidate's never loads a problem."""
    match role:
        case "reference":
            from mtmc.verify.reference import Reference

            return Reference(device, folder)
        case "candidate":
            from mtmc.verify.child import Child

            return Child(device, folder)
        case "build":
            from mtmc.verify.build import Builder

            return Builder(folder)
    raise ValueError(f"unknown role {role!r}")
