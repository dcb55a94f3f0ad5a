"""How actions name kernels: by id, by class of structurally equal kernels, or all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mtmc.errors import IllegalAction
from mtmc.ir.codec import kernel_classes
from mtmc.ir.program import Kernel, Program

REGION = r"[A-Za-z_]\w*(?: and its \d+ equals?)?"
"""A region in a line whose notes were taken out."""

_NOTE = re.compile(r" \([^()]*\)")
_BRACKETS = str.maketrans("()", "[]")
_EQUALS = re.compile(r" and its \d+ equals?$")


def strip_notes(line: str) -> str:
    """The line without the notes for people: ``fuse k3 (linear, line 15) and k4`` -> ``fuse k3 and k4``."""
    return " ".join(_NOTE.sub("", line).split())


def token(text: str) -> str:
    """The region token of its printed text: ``k3 and its 49 equals`` -> ``k3*``."""
    plain, count = _EQUALS.subn("", text)
    return plain + "*" if count else plain


def named(program: Program, region: str) -> str:
    """The printed text of a region: ``k3 (linear, line 15)``, ``k3 and its 49 equals (linear, line 15)``."""
    if region == "all":
        return region
    kernel = program.kernel(region.removesuffix("*"))
    note = f" ({kernel.note.translate(_BRACKETS)})"
    if not region.endswith("*"):
        return f"{kernel.id}{note}"
    others = len(members(program, region)) - 1
    return f"{kernel.id} and its {others} equal{'' if others == 1 else 's'}{note}"


def classes(program: Program) -> tuple[tuple[Kernel, ...], ...]:
    """Structurally equal kernels together, in program order. Kept in the program, as ``functools.cached_property``
    would: one decision asks many times."""
    kept: tuple[tuple[Kernel, ...], ...] | None = vars(program).get("_classes")
    if kept is None:
        kept = tuple(tuple(map(program.kernel, ids)) for ids in kernel_classes(program).values())
        vars(program)["_classes"] = kept
    return kept


def members(program: Program, region: str) -> tuple[Kernel, ...]:
    """The kernels that a region names. Raises IllegalAction for an unknown one."""
    if region == "all":
        return program.kernels
    name = region.removesuffix("*")
    kernel = next((k for k in program.kernels if k.id == name), None)
    if kernel is None:
        raise IllegalAction(f"there is no kernel {name}; the program has {', '.join(k.id for k in program.kernels)}")
    if not region.endswith("*"):
        return (kernel,)
    return next(equal for equal in classes(program) if any(k.id == name for k in equal))


def representatives(program: Program) -> Iterator[tuple[str, Kernel]]:
    """One region and kernel for each class, in program order; ``k3*`` where the class has several."""
    for equal in classes(program):
        yield region_of(program, equal[0]), equal[0]


def region_of(program: Program, kernel: Kernel) -> str:
    """The class region of a kernel, named by the class's first member; its id where the class has one member."""
    kept: dict[str, str] | None = vars(program).get("_regions")
    if kept is None:
        kept = {k.id: equal[0].id + "*" * (len(equal) > 1) for equal in classes(program) for k in equal}
        vars(program)["_regions"] = kept
    return kept[kernel.id]
