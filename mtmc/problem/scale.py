"""Make a problem file small: halve integer constants at the top level while the reference still runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import torch

from mtmc.errors import ProblemError
from mtmc.log import get_logger
from mtmc.problem.problem import Problem
from mtmc.problem.tree import tensors

log = get_logger("problem")

SMALLEST = 2
"""No constant is made smaller than this: extents of 1 hide wrong strides and broadcasts."""
ROUNDS = 40


def scaled(problem: Problem, max_elements: int) -> Problem:
    """See ``Problem.scaled``. Sizes are found on the meta device where the constructor allows it."""
    constants = _constants(ast.parse(problem.text))
    values = dict(constants)
    frozen: set[str] = set()
    if _elements(problem) is None or _small(problem, max_elements):
        return problem
    for _ in range(ROUNDS):
        # The largest constant first; batch-like names before feature sizes, which are more often coupled.
        names = [n for n in values if n not in frozen and values[n] >= 2 * SMALLEST]
        if not names:
            break
        top = max(names, key=lambda n: (values[n], "batch" in n.lower()))
        together = [n for n in names if values[n] == values[top]]  # equal sizes are mostly one size
        for group in [together, *([n] for n in together if len(together) > 1)]:
            trial = values | {n: values[n] // 2 for n in group}
            candidate = _rewritten(problem, constants, trial)
            if _elements(candidate) is not None:
                values = trial
                break
        else:
            frozen.update(together)
            continue
        if _small(_rewritten(problem, constants, values), max_elements):
            break
    return _flagged(problem, constants, values)


def _flagged(problem: Problem, before: Mapping[str, int], after: Mapping[str, int]) -> Problem:
    changed = ", ".join(f"{n} {before[n]} -> {after[n]}" for n in before if before[n] != after[n])
    result = _rewritten(problem, before, after)
    if not changed or not _runs(result):
        log.warning("%s can't be scaled down: no smaller constants keep it running", problem.name)
        return problem.model_copy(update={"flags": (*problem.flags, "could not be scaled down")})
    return result.model_copy(update={"flags": (*problem.flags, f"scaled: {changed}")})


def _small(problem: Problem, max_elements: int) -> bool:
    count = _elements(problem)
    return count is not None and count <= max_elements


def _elements(problem: Problem) -> int | None:
    """Elements of inputs and outputs together, found without computing anything; None: it does not run."""
    try:
        with torch.no_grad():
            module, inputs = problem.instantiate("meta")
            outputs = module(*inputs)
    except Exception:  # any failure means: not with these constants
        return None
    return sum(t.numel() for t in tensors([inputs, outputs]))


def _runs(problem: Problem) -> bool:
    try:
        with torch.no_grad():
            module, inputs = problem.instantiate("cpu")
            module(*inputs)
    except (ProblemError, RuntimeError, ValueError, TypeError, IndexError) as error:
        log.debug("scaled %s does not run: %s", problem.name, error)
        return False
    return True


def _constants(tree: ast.Module) -> dict[str, int]:
    """Names assigned a positive integer (also ``2048 * 2`` and ``h = w = 128``) at the top level, once."""
    found: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and (value := _integer(node.value)) is not None and value > 0:
            found |= {t.id: value for t in node.targets if isinstance(t, ast.Name)}
    return found


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(
            left=left, op=ast.Mult() | ast.Add() | ast.Sub() | ast.Pow() | ast.FloorDiv() as op, right=right
        ):
            a, b = _integer(left), _integer(right)
            if (
                a is None
                or b is None
                or (isinstance(op, ast.FloorDiv) and b == 0)
                or (isinstance(op, ast.Pow) and b > 64)
            ):
                return None
            match op:
                case ast.Mult():
                    return a * b
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.FloorDiv():
                    return a // b
                case _:
                    return int(a**b)
    return None


def _rewritten(problem: Problem, before: Mapping[str, int], after: Mapping[str, int]) -> Problem:
    """The problem with changed constants, line numbers kept: each changed statement is replaced in place."""
    lines = problem.text.splitlines(keepends=True)
    for node in reversed(ast.parse(problem.text).body):
        if not isinstance(node, ast.Assign):
            continue
        names = [t.id for t in node.targets if isinstance(t, ast.Name) and before.get(t.id) != after.get(t.id)]
        if names and _integer(node.value) is not None:
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            text = "; ".join(f"{n} = {after[n]}" for n in targets)
            end = node.end_lineno or node.lineno
            tail = lines[end - 1][node.end_col_offset :] or "\n"
            lines[node.lineno - 1 : end] = [text + tail] + ["\n"] * (end - node.lineno)
    return problem.model_copy(update={"text": "".join(lines), "path": ""})
