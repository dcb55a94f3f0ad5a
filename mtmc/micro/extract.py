"""Code out of an answer: the last fenced block, checked for what can be checked without running it."""

from __future__ import annotations

import ast
import re

from mtmc.errors import CoderError

_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_PYTHON = ("", "python", "py", "triton")


def extract_code(answer: str) -> str:
    """The text of the last Python block of ``answer``: models think aloud first and give the result last.

    Raises:
        CoderError: there is no block, it was cut off, or it does not parse.
    """
    blocks = [body for language, body in _FENCE.findall(answer) if language.lower() in _PYTHON]
    if not blocks:
        cut = answer.count("```") % 2 == 1
        raise CoderError(
            "The answer's code block has no end: it was cut off, allow more tokens."
            if cut
            else "The answer holds no code; it must give one Python block between lines of ```."
        )
    code = blocks[-1].strip("\n") + "\n"
    try:
        ast.parse(code)
    except SyntaxError as error:
        raise CoderError(f"The answer's code does not parse at its line {error.lineno}: {error.msg}.") from None
    return code


def find_function(code: str, name: str, arguments: int) -> str:
    """The name of the function that takes the kernel's buffers: ``name`` if it is there, else the last one that is not
    decorated (a ``@triton.jit`` function is a launch's body, not the launch).

    Raises:
        CoderError: there is none, or it does not take ``arguments`` positional arguments.
    """
    plain = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef) and not n.decorator_list]
    if not plain:
        raise CoderError(f"The code defines no function {name} that launches the kernel.")
    function = next((n for n in plain if n.name == name), plain[-1])
    given = function.args
    most = len(given.posonlyargs) + len(given.args)
    if given.kwonlyargs and any(default is None for default in given.kw_defaults):
        raise CoderError(f"{function.name} asks for keyword arguments; it gets {arguments} buffers by position.")
    if not (most - len(given.defaults) <= arguments and (arguments <= most or given.vararg)):
        raise CoderError(f"{function.name} takes {most} arguments but the kernel has {arguments} buffers.")
    return function.name
