"""One exception tree. Every message says what happened, where, and what to do next.

::

    MtmcError                     exit 2
    ├── UsageError                exit 2   an option or argument that makes no sense
    ├── ProblemError              exit 2   the user's file: missing, no Model, get_inputs raised
    ├── CaptureError              exit 2   torch.export refused; carries file and line
    ├── IRError                   exit 2   a Program that breaks an invariant, or text that does not parse
    │   └── IllegalAction         exit 2   an action that does not apply to this Program
    ├── CodegenError              exit 2   a kernel that no renderer can write
    ├── CoderError                exit 2   a coder that gave no usable source
    ├── JudgeError                exit 2   the judge reached no verdict (a verdict is never an exception)
    ├── BenchError                exit 2   a benchmark folder, shard or result file that is not usable
    ├── StoreError                exit 3   the store or the cache folder can't be read or written
    └── EnvironmentProblem        exit 3   something this machine lacks: no Triton, no GPU, no compiler
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    FINE = 0
    NOTHING_FASTER = 1
    """Ran to its end, but nothing was faster, or the candidate was rejected."""
    WRONG_USE = 2
    """Bad options or bad input."""
    ENVIRONMENT = 3
    """The machine lacks something; ``mtmc doctor`` says what."""
    INTERNAL = 70
    """A bug in mtmc (EX_SOFTWARE of sysexits.h); never 1, which means something else here."""
    INTERRUPTED = 130


class MtmcError(Exception):
    """Base of every error that mtmc raises on purpose; ``message`` is one or two full sentences."""

    exit_code: int = Exit.WRONG_USE

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UsageError(MtmcError):
    """An option or argument that makes no sense."""


class ProblemError(MtmcError):
    """The program that the user hands in is not usable as it stands."""


class CaptureError(MtmcError):
    """The program can't be turned into a Program. ``file`` and ``line`` are the innermost user frame."""

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        where = f"{file or '<source>'}:{line}: " if line is not None else f"{file}: " if file else ""
        super().__init__(where + message)
        self.file = file
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call __init__ with the finished message and lose file and line between processes.
        return _rebuild, (type(self), self.message, {"file": self.file, "line": self.line})


def _rebuild(kind: type[CaptureError], message: str, fields: dict[str, object]) -> CaptureError:
    error = kind.__new__(kind)
    MtmcError.__init__(error, message)
    error.__dict__.update(fields)
    return error


class IRError(MtmcError):
    """A Program that breaks an invariant, or text that does not parse."""


class IllegalAction(IRError):
    """The action does not apply to this Program. Legality is found by trying, so this is raised often."""


class CodegenError(MtmcError):
    """A kernel that the renderer can't write."""


class CoderError(MtmcError):
    """A coder gave no usable source for the region."""


class JudgeError(MtmcError):
    """The judge itself failed. A rejected candidate is an ``Evaluation``, never an exception."""


class BenchError(MtmcError):
    """A benchmark folder, shard or result file that can't be used."""


class StoreError(MtmcError):
    """The store or the cache folder can't be read or written."""

    exit_code = Exit.ENVIRONMENT


class EnvironmentProblem(MtmcError):
    """This machine lacks something the command needs."""

    exit_code = Exit.ENVIRONMENT
