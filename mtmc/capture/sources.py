"""Which line of the user's file an operation came from.

The tracer itself keeps only frames called ``forward``, so a helper method's operations would all carry the line that
calls it; :func:`lines_recorded` notes the innermost user frame of every node as it is made.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.fx.proxy import TracerBase

import mtmc.errors

_KEY = "mtmc_frame"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARIES = tuple(str(Path(path).parent) + os.sep for path in (torch.__file__, mtmc.errors.__file__, os.__file__))


def is_user_frame(name: str, file: str | None) -> bool:
    """True for a frame of ``file``; without one, for a frame that is not torch's, mtmc's or the standard library's."""
    if file is not None:
        return name == file
    return not name.startswith((*_LIBRARIES, "<")) and "site-packages" not in name


@contextmanager
def lines_recorded(file: str | None) -> Iterator[None]:
    """Every node that a tracer makes inside remembers its innermost user frame."""
    original = TracerBase.create_node

    def create_node(self: TracerBase, *args: Any, **kwargs: Any) -> Node:
        node = original(self, *args, **kwargs)
        frame = sys._getframe(1)
        while frame is not None and not is_user_frame(frame.f_code.co_filename, file):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is not None:
            node.meta[_KEY] = (frame.f_code.co_filename, frame.f_lineno)
        return node

    TracerBase.create_node = create_node  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        TracerBase.create_node = original  # type: ignore[method-assign]


def user_frame(node: Node, file: str | None) -> tuple[str | None, int | None]:
    """File and line of the innermost user frame of a node; from its stack trace where none was recorded (a saved
    program), Nones where there is none either."""
    if _KEY in node.meta:
        return node.meta[_KEY]
    frames = [(name, int(line)) for name, line in _FRAME.findall(node.meta.get("stack_trace") or "")]
    own = [frame for frame in frames if is_user_frame(frame[0], file)]
    return own[-1] if own else (file, None)
