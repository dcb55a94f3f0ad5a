"""What a coder hands to the judge: one self-contained Python file that defines ``ModelNew``."""

from __future__ import annotations

import hashlib

from pydantic import Field

from mtmc.data.record import Record


class KernelSignature(Record):
    """How one generated Triton kernel is compiled, so that a machine without a GPU can build it."""

    kernel: str
    """Id of the Program kernel that this function implements, such as ``k3``."""
    function: str
    """Name of the ``@triton.jit`` function in the candidate's source."""
    args: tuple[tuple[str, str], ...]
    """Run-time arguments in order: name and Triton type (``*fp32``, ``i32``, ``fp32``)."""
    constexprs: tuple[tuple[str, int | float | bool | str], ...] = ()
    """Compile-time arguments: name and value."""
    aligned: tuple[str, ...] = ()
    """Arguments that are divisible by 16 (pointers to fresh allocations, mostly)."""
    num_warps: int = 4
    num_stages: int = 3


class Candidate(Record):
    """A program to judge. Equal sources are equal candidates, whoever wrote them."""

    source: str
    """The whole file. Defines ``ModelNew`` with the reference's constructor arguments."""
    signatures: tuple[KernelSignature, ...] = ()
    """One entry for each generated kernel; empty for a file that somebody else wrote."""
    marked_source: str = ""
    """The same program with ``_mark("k0")`` after each kernel of the launch plan: the judge binds the
    module global ``_mark`` to an event recorder and so times every kernel. Empty: not available."""
    library_kernels: tuple[str, ...] = ()
    """Ids of the kernels that PyTorch still runs. Empty means the candidate is pure."""
    entry: str = Field(default="ModelNew")

    @property
    def key(self) -> str:
        """Content hash of the source (blake2b, 16 bytes, hex)."""
        return hashlib.blake2b(self.source.encode(), digest_size=16).hexdigest()
