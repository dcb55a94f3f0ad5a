"""What PyTorch runs, as Python text: the ATen calls of a Library kernel."""

from __future__ import annotations

import math
from collections.abc import Callable

from mtmc.errors import CodegenError
from mtmc.ir.index import Index
from mtmc.ir.program import Arg, Call, Kernel, Ref, Token


def render_calls(kernel: Kernel, name_of: Callable[[str], str], writes: tuple[str, ...]) -> list[str]:
    """One line for each call of a kernel; ``name_of`` names buffers, values between the calls get the kernel's id.
    ``writes``: what the kernel leaves behind, also where no call of it makes that any more."""
    if not kernel.calls:
        raise CodegenError(f"{kernel.id} ({kernel.note}) was made by an action: PyTorch has no call for it")
    outside = set(kernel.reads) | set(writes)

    def name(value: str) -> str:
        return name_of(value) if value in outside else f"{kernel.id}_{name_of(value)}"

    return [_render_call(call, name) for call in kernel.calls]


def _render_call(call: Call, name_of: Callable[[str], str]) -> str:
    arguments = [render_arg(arg, name_of) for arg in call.args]
    arguments += [f"{key}={render_arg(value, name_of)}" for key, value in call.kwargs]
    text = f"{_function(call.target)}({', '.join(arguments)})"
    results = [name_of(result) if result else "_" for result in call.results]
    if not any(call.results):
        return text
    if len(results) == 1:
        return f"{results[0]} = {text}"
    return f"{', '.join(results)} = {text}"


def _function(target: str) -> str:
    if target.startswith("aten."):
        return f"torch.ops.{target}"
    if target.startswith(("torch.", "operator.")):
        return target
    return f"torch.ops.{target}"


def render_arg(arg: Arg, name_of: Callable[[str], str]) -> str:
    """Python text of one argument of a call."""
    match arg:
        case Ref(name):
            return name_of(name)
        case Token(text):
            return text
        case Index():
            return str(arg)
        case tuple():
            return f"[{', '.join(render_arg(item, name_of) for item in arg)}]"
        case float() if math.isinf(arg) or math.isnan(arg):
            return f'float("{arg}")'
        case _:
            return repr(arg)
