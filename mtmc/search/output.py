"""What a search leaves behind: the generated file with its header."""

from __future__ import annotations

import os
from pathlib import Path

from mtmc.codegen import module as codegen
from mtmc.data.step import library_versions
from mtmc.errors import UsageError
from mtmc.search.result import SearchResult


def written_source(result: SearchResult, verify: str = "") -> str:
    """The final program's file: as it was judged, under a header that says where it comes from.

    ``verify`` is the command that judges the file again.
    """
    return codegen.render(result.program, result.problem, header=header(result, verify)).source


def header(result: SearchResult, verify: str = "") -> str:
    """Plain lines: versions, hardware, times, the trace of actions, the command that verifies."""
    versions = library_versions()
    named = ", ".join(f"{name} {versions[name]}" for name in ("mtmc", "torch", "triton") if name in versions)
    lines = [f"{result.problem.name}: written by {named}.", _measured(result)]
    if result.path:
        lines += ["Actions, in order:", *(f"  {line}" for line in result.path)]
    lines += [f"Note: {note}" for note in result.notes]
    if verify:
        lines.append(f"Verify again: {verify}")
    return "\n".join(lines)


def _measured(result: SearchResult) -> str:
    gpu = result.hardware.name
    if result.ms is None:
        return f"Not timed: there was no GPU. Written for the {gpu}."
    rivals = [("eager", result.eager_ms), ("torch.compile", result.compile_ms)]
    against = ", ".join(f"{name} {ms:.4g} ms" for name, ms in rivals if ms is not None)
    return f"Measured on one {gpu}, driver {result.hardware.driver}: {result.ms:.4g} ms; {against}."


def check_writable(path: Path) -> None:
    """Refuse an output path before a search spends time on it.

    Raises:
        UsageError: its folder does not exist or can't be written, or it is a folder itself.
    """
    folder = path.absolute().parent
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"the folder {folder} does not exist"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    if reason:
        raise UsageError(f"The output {path} can't be written ({reason}); give another path with -o.")


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        UsageError: it can't be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"The output {path} can't be written ({error.strerror or error}).") from error
