"""The source of a region: what an engineer would look at before deciding about a kernel."""

from __future__ import annotations

import ast

from mtmc.data.candidate import Candidate
from mtmc.ir.program import Kernel, Library, Program, Source


def sources(program: Program, candidate: Candidate | None, text: str = "") -> dict[str, str]:
    """Kernel id to source: the generated Triton functions, a coder's own text, or the user's lines.

    Args:
        candidate: the rendered program, if there is one.
        text: the user's file; empty for a module.
    """
    functions = _functions(candidate) if candidate else {}
    lines = text.splitlines()
    return {kernel.id: _source(kernel, functions.get(kernel.id, ""), lines) for kernel in program.kernels}


def _source(kernel: Kernel, generated: str, lines: list[str]) -> str:
    match kernel.impl:
        case Source(text):
            return text.strip()
        case Library():
            return "\n".join(lines[n - 1].strip() for n in kernel.lines if 0 < n <= len(lines))
    return generated


def _functions(candidate: Candidate) -> dict[str, str]:
    """Kernel id to the text of its generated functions, decorators left out: they are all alike."""
    if not candidate.signatures:
        return {}
    rows = candidate.source.splitlines()
    bodies = {
        node.name: "\n".join(rows[node.lineno - 1 : node.end_lineno])
        for node in ast.parse(candidate.source).body
        if isinstance(node, ast.FunctionDef)
    }
    found: dict[str, str] = {}
    for signature in candidate.signatures:
        body = bodies.get(signature.function, "")
        known = found.get(signature.kernel, "")
        found[signature.kernel] = f"{known}\n{body}".strip() if body not in known else known
    return found
