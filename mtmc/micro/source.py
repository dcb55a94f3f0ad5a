"""An answer in text becomes the ``Source`` implementation of one kernel; its spec stays, so it is judged as any
other."""

from __future__ import annotations

from dataclasses import replace

from mtmc.ir.program import Program, Source
from mtmc.micro.extract import extract_code, find_function


def with_source(program: Program, kernel_id: str, answer: str) -> Program:
    """``program`` with ``kernel_id`` implemented by the code in ``answer``: a function over the kernel's read buffers,
    then its written ones.

    Raises:
        CoderError: no code, code that does not parse, or no function over that many buffers.
    """
    kernel = program.kernel(kernel_id)
    code = extract_code(answer)
    function = find_function(code, kernel_id, len(kernel.reads) + len(kernel.writes))
    return program.replace_kernel(kernel_id, replace(kernel, impl=Source(code, function)))
