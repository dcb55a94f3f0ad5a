"""Which line of the user's file an operation came from."""

from __future__ import annotations

import re

from torch.fx import Node

from mtmc.capture.export import is_user_frame

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def user_line(node: Node, file: str | None) -> int | None:
    """The innermost user frame of the node's stack trace; None where tracing kept none."""
    trace = node.meta.get("stack_trace") or ""
    lines = [int(line) for name, line in _FRAME.findall(trace) if is_user_frame(name, file)]
    return lines[-1] if lines else None
