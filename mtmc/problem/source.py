"""Loading of a KernelBench-format file: namespace, module and inputs, with the user's line in every error."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mtmc.errors import ProblemError
from mtmc.problem.problem import Problem
from mtmc.problem.tree import to_device

NEEDED = ("Model", "get_inputs")


def check(problem: Problem) -> None:
    """Everything that can be said about the text without running it."""
    if not problem.text.strip():
        raise ProblemError(f"{_where(problem)} is empty; it must define Model and get_inputs.")
    try:
        tree = ast.parse(problem.text)
    except SyntaxError as error:
        raise ProblemError(f"{_where(problem)}:{error.lineno} does not parse: {error.msg}.") from None
    defined = set(_names(tree.body))
    if missing := [name for name in NEEDED if name not in defined]:
        raise ProblemError(
            f"{_where(problem)} does not define {' or '.join(missing)}; a problem file defines the class Model and the "
            "functions get_inputs() and get_init_inputs()."
        )


def load(problem: Problem) -> ModuleType:
    """The executed file as a module, once a process. Its lines are known to ``linecache`` and ``inspect``."""
    name = f"mtmc_problem_{problem.key}"
    if name in sys.modules:
        return sys.modules[name]
    check(problem)
    file = _file_name(problem)
    linecache.cache[file] = (len(problem.text), None, problem.text.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module  # before exec: dataclasses and pickling look the module up
    try:
        _run(problem, "the file", lambda: exec(compile(problem.text, file, "exec"), module.__dict__))
    except ProblemError:
        del sys.modules[name]
        raise
    return module


def build_module(problem: Problem, device: str, seed: int) -> torch.nn.Module:
    """``Model(*get_init_inputs())`` built on ``device`` in training mode, without gradients being recorded."""
    arguments = init_inputs(problem, device, seed)
    model = load(problem).Model
    torch.manual_seed(seed)
    with torch.device(device), torch.no_grad():
        built = _run(problem, "the constructor of Model", lambda: model(*arguments))
    if not isinstance(built, torch.nn.Module):
        raise ProblemError(f"{_where(problem)}: Model is not a torch.nn.Module but a {type(built).__name__}.")
    return built.to(device)


def make_inputs(problem: Problem, device: str, seed: int) -> list[Any]:
    """``get_inputs()`` run with ``device`` as the default, so that large inputs are drawn where they are used."""
    function = load(problem).get_inputs
    torch.manual_seed(seed)
    with torch.device(device), torch.no_grad():
        inputs = _run(problem, "get_inputs", function)
    if not isinstance(inputs, list | tuple):
        raise ProblemError(f"{_where(problem)}: get_inputs returned a {type(inputs).__name__}, not a list of inputs.")
    return [to_device(x, device) for x in inputs]


def init_inputs(problem: Problem, device: str, seed: int) -> list[Any]:
    """``get_init_inputs()``, or no arguments where the file defines none."""
    function: Callable[[], Any] = getattr(load(problem), "get_init_inputs", list)
    torch.manual_seed(seed)
    with torch.device(device), torch.no_grad():
        arguments = _run(problem, "get_init_inputs", function)
    if not isinstance(arguments, list | tuple):
        raise ProblemError(f"{_where(problem)}: get_init_inputs returned a {type(arguments).__name__}, not a list.")
    return [to_device(x, device) for x in arguments]


def _run(problem: Problem, what: str, function: Callable[[], Any]) -> Any:
    """Run the user's code; what it raises becomes one sentence with the innermost user line."""
    try:
        return function()
    except torch.cuda.OutOfMemoryError:
        raise  # a property of the machine, not of the file
    except Exception as error:
        file = _file_name(problem)
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        at = f" at line {lines[-1].lineno} (`{(lines[-1].line or '').strip()}`)" if lines else ""
        raise ProblemError(
            f"{_where(problem)}: {what} raised {type(error).__name__}{at}: {error}. Fix it and run again."
        ) from error


def _file_name(problem: Problem) -> str:
    """The real path while the file still holds this text, so that editors can follow it; else a unique name."""
    path = Path(problem.path)
    if problem.path and path.is_file() and path.read_text(encoding="utf-8") == problem.text:
        return problem.path
    return f"/mtmc/{problem.key}/{problem.name}.py"


def _where(problem: Problem) -> str:
    return problem.path or f"The problem {problem.name}"


def _names(body: list[ast.stmt]) -> list[str]:
    """Names bound at the top level, also inside ``if`` and ``try``."""
    names: list[str] = []
    for node in body:
        match node:
            case ast.ClassDef() | ast.FunctionDef():
                names.append(node.name)
            case ast.Import() | ast.ImportFrom():
                names += [alias.asname or alias.name for alias in node.names]
            case ast.Assign():
                names += [t.id for t in node.targets if isinstance(t, ast.Name)]
            case ast.If() | ast.Try():
                names += _names(node.body) + _names(node.orelse)
    return names
