"""The Problem record: frozen, JSON-able, without torch; every method that needs torch imports it when called."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtmc.data.record import Record
from mtmc.errors import ProblemError

if TYPE_CHECKING:
    import torch


class Kind(StrEnum):
    """How a problem came in."""

    FILE = "file"
    """KernelBench format: ``Model``, ``get_inputs``, ``get_init_inputs``."""
    MODULE = "module"
    """An ``nn.Module`` with example inputs, saved as an exported program."""


class Problem(Record):
    """A program to optimise, in a form that any process can re-create it from."""

    kind: Kind = Kind.FILE
    name: str
    """File stem or module class, for people."""
    text: str = ""
    """The whole source (``file``)."""
    path: str = ""
    """The file that ``text`` was read from, if any; the folder that holds the exported program (``module``)."""
    digest: str = ""
    """Content hash of the folder (``module``), taken when it was saved."""
    batch_limit: int = 0
    """Largest size of dimension 0 of the inputs that a ``module`` was exported for; 0: the examples' own size only."""
    flags: tuple[str, ...] = ()
    """What was changed on the way in, such as ``scaled: batch_size 128 -> 2``."""

    @property
    def key(self) -> str:
        """Content hash (blake2b, 8 bytes, hex): equal programs are equal problems wherever they lie."""
        return self.digest or hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()

    @property
    def source_name(self) -> str:
        """The file name that stack traces and ``linecache`` know the text by."""
        return self.path or f"/mtmc/{self.key}/{self.name}.py"

    def instantiate(self, device: str = "cpu", seed: int = 0) -> tuple[torch.nn.Module, list[Any]]:
        """The module (in training mode, as KernelBench runs it) and its inputs, both built on ``device``.

        Raises:
            ProblemError: the constructor or ``get_inputs`` raised; the message carries the user's line.
        """
        return self.build_module(device, seed), self.make_inputs(device, seed)

    def build_module(self, device: str = "cpu", seed: int = 0) -> torch.nn.Module:
        """The reference module on ``device``, its parameters drawn after ``torch.manual_seed(seed)``."""
        if self.kind is Kind.FILE:
            from mtmc.problem import source

            return source.build_module(self, device, seed)
        from mtmc.problem import module

        return module.build_module(self, device)

    def make_inputs(self, device: str = "cpu", seed: int = 0) -> list[Any]:
        """Positional inputs of one forward, drawn on ``device`` after ``torch.manual_seed(seed)``.

        For a module, seed 0 gives the example inputs themselves and every other seed permutes their elements, which
        keeps each tensor's distribution and the range of its indices.
        """
        if self.kind is Kind.FILE:
            from mtmc.problem import source

            return source.make_inputs(self, device, seed)
        from mtmc.problem import module

        return module.make_inputs(self, device, seed)

    def init_inputs(self, device: str = "cpu", seed: int = 0) -> list[Any]:
        """Constructor arguments of ``Model`` (and of ``ModelNew``); empty for a module."""
        if self.kind is Kind.FILE:
            from mtmc.problem import source

            return source.init_inputs(self, device, seed)
        return []

    def scaled(self, max_elements: int) -> Problem:
        """The same program with smaller constants, so that its tensors hold about ``max_elements`` in all.

        Best effort: integer constants at the top level of the file are halved as long as the reference still runs.
        What changed is in ``flags``. Returns ``self`` where it is small enough already or is not a file.
        """
        if self.kind is not Kind.FILE:
            return self
        from mtmc.problem import scale

        return scale.scaled(self, max_elements)


def load_problem(source: str | Path, *, name: str | None = None) -> Problem:
    """A Problem from a KernelBench-format file, or from the text of one.

    Args:
        source: path of a file, or the text itself (anything with a line break).
        name: for messages; default: the file's stem.

    Raises:
        ProblemError: missing, empty, does not parse, or lacks ``Model`` or ``get_inputs``.
    """
    text, path = (str(source), "") if "\n" in str(source) else (_read(Path(source)), str(Path(source).resolve()))
    name = name or (Path(path).stem if path else "problem")
    problem = Problem(name=name, text=text, path=path)
    from mtmc.problem import source as loader

    loader.check(problem)
    return problem


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProblemError(f"The file {path} does not exist; give the path of a file that defines Model.") from None
    except IsADirectoryError:
        raise ProblemError(f"{path} is a folder; give one file that defines Model.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"The file {path} can't be read as text: {error}.") from error
    return text
