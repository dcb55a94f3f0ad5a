"""The vocabulary: every kind of action, the candidates for one decision, and how an action is applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from mtmc.actions import encode, fuse, generate, pipeline, reorder, revert, split, stop, tile
from mtmc.actions.action import Action, ActionType
from mtmc.actions.regions import members, strip_notes
from mtmc.data.hardware import H200, Hardware
from mtmc.errors import IllegalAction, IRError
from mtmc.ir import cost
from mtmc.ir.codec import kernel_hash
from mtmc.ir.program import Program

ACTIONS: tuple[ActionType, ...] = cast(
    tuple[ActionType, ...],
    (generate, fuse, tile, split, encode, pipeline, reorder, revert, stop),
)
"""In the order in which candidates are listed."""

VOCABULARY_VERSION = 2
"""Of the generator: which candidates are proposed, in which order. Raise it with every change to either."""

_QUOTAS = {
    generate.KIND: 1, stop.KIND: 1, revert.KIND: 3,
    fuse.KIND: 18, tile.KIND: 18, split.KIND: 5, encode.KIND: 4, pipeline.KIND: 8, reorder.KIND: 5,
}  # fmt: skip
"""Of 64 candidates; what one kind does not use goes to the others."""

_TRIES = 4
"""Kernels of a class on which legality is tried."""


@dataclass(frozen=True)
class Candidates:
    """What may be done next: legal actions in the catalogue's order, never ranked."""

    actions: tuple[Action, ...]
    cut: int
    """How many further proposals the quotas cut; these were not tried."""
    version: int = VOCABULARY_VERSION


# ---- one action ---------------------------------------------------------------------------------------------


def module_of(action: Action) -> ActionType:
    for module in ACTIONS:
        if module.KIND == action.kind:
            return module
    raise IllegalAction(f"there is no action '{action.kind}'; there are {', '.join(m.KIND for m in ACTIONS)}")


def parse(line: str) -> Action:
    """The action of a printed line, whatever its notes say. Raises IllegalAction for any other text."""
    bare = strip_notes(line)
    for module in ACTIONS:
        action = module.parse(bare)
        if action is not None:
            return action
    raise IllegalAction(f"'{line}' is no action; an action reads like 'tile k3 to 128x128x64 with 8 warps' or 'stop'")


def apply(program: Program, action: Action, hardware: Hardware = H200) -> Program:
    """The Program after an action; on a class of kernels, after the action on each of them.

    ``hardware`` chooses default schedules only, never what is legal.

    Raises:
        IllegalAction: the action does not apply; the message is the reason.
    """
    module = module_of(action)
    try:
        return _apply_to_each(module, program, action, hardware)
    except IllegalAction:
        raise
    except IRError as error:
        raise IllegalAction(error.message) from error


def _apply_to_each(module: ActionType, program: Program, action: Action, hardware: Hardware) -> Program:
    """As many kernels of a class as take the action, at least one."""
    result, reason = program, None
    regions = list(_expanded(program, action))
    for region in regions:
        try:
            result = module.rewrite(result, replace(action, region=region), hardware)
        except IRError as error:
            if len(regions) == 1:
                raise
            reason = reason or error
    if result is program and action.kind != stop.KIND:
        raise reason or IllegalAction(f"no kernels of {' and '.join(action.region)} belong together")
    return result


def _expanded(program: Program, action: Action) -> Iterable[tuple[str, ...]]:
    """The kernels of the action's classes: one region for each time that it is applied."""
    if not any(region.endswith("*") for region in action.region):
        return [action.region]
    classes = [members(program, region) for region in action.region]
    if len(classes) == 1:
        return [(kernel.id,) for kernel in classes[0]]
    return fuse.pairs(program, classes[0], classes[1])


# ---- candidates ---------------------------------------------------------------------------------------------


def propose(
    program: Program, hardware: Hardware, shares: Mapping[str, float] | None = None, limit: int = 64
) -> Candidates:
    """Legal actions for one decision: deterministic, at most ``limit``, in the catalogue's order.

    Every kind has a quota, and inside a kind regions take turns, hot regions more often. Legality is found by
    trying: what raises, or gives a Program that is here already, is left out.

    Args:
        shares: time share of kernels by id, as measured; by default a roofline estimate.
    """
    heat = dict(shares) if shares else cost.shares(program, hardware)
    proposals = {module.KIND: list(module.propose(program, hardware)) for module in ACTIONS}
    queues = {kind: list(_by_turns(actions, program, heat)) for kind, actions in proposals.items()}
    tried: dict[str, int] = dict.fromkeys(queues, 0)
    kept: dict[str, list[Action]] = {kind: [] for kind in queues}
    reached: set[_Change] = {(program.launch, (), ())}

    def fill(kind: str, room: int) -> None:
        queue = queues[kind]
        while room > 0 and tried[kind] < len(queue):
            action = queue[tried[kind]]
            tried[kind] += 1
            if action.kind == stop.KIND or _leads_on(program, action, hardware, reached):
                kept[kind].append(action)
                room -= 1

    for kind in queues:
        fill(kind, max(1, _QUOTAS[kind] * limit // 64))
    for kind in queues:
        fill(kind, limit - sum(map(len, kept.values())))
    actions = [action for kind in queues for action in proposals[kind] if action in kept[kind]][:limit]
    return Candidates(tuple(actions), sum(len(queue) - tried[kind] for kind, queue in queues.items()))


def _leads_on(program: Program, action: Action, hardware: Hardware, reached: set[_Change]) -> bool:
    """True if the action is legal and makes a change that is not in ``reached`` yet, where it is then added. A class
    is tried on its first kernels only: what one of them takes, the action does."""
    module = module_of(action)
    for region in list(_expanded(program, action))[:_TRIES]:
        try:
            change = _change(program, module.rewrite(program, replace(action, region=region), hardware))
        except IRError:
            continue
        if change in reached:
            return False
        reached.add(change)
        return True
    return False


_Change: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Launch plan, ids of the kernels that went, structural hashes of those that came."""


def _change(before: Program, after: Program) -> _Change:
    """What tells two next Programs apart; hashing only what differs keeps large networks quick."""
    old, new = set(map(id, before.kernels)), set(map(id, after.kernels))
    gone = {kernel.id: kernel_hash(before, kernel) for kernel in before.kernels if id(kernel) not in new}
    came = {kernel.id: kernel_hash(after, kernel) for kernel in after.kernels if id(kernel) not in old}
    same = {name for name in gone if gone[name] == came.get(name)}
    return (
        after.launch,
        tuple(sorted(name for name in gone if name not in same)),
        tuple(sorted(digest for name, digest in came.items() if name not in same)),
    )


def _by_turns(actions: list[Action], program: Program, heat: Mapping[str, float]) -> Iterator[Action]:
    """Regions take turns; one with twice the share of time has two actions in a turn, up to four."""
    queues: dict[tuple[str, ...], list[Action]] = {}
    for action in actions:
        queues.setdefault(action.region, []).append(action)
    shares = {region: _share(program, region, heat) for region in queues}
    order = sorted(queues, key=lambda region: -shares[region])
    coldest = max(min(shares.values(), default=1.0), 1e-9)
    while any(queues.values()):
        for region in order:
            turns = max(1, min(4, round(shares[region] / coldest)))
            for _ in range(min(turns, len(queues[region]))):
                yield queues[region].pop(0)


def _share(program: Program, region: tuple[str, ...], heat: Mapping[str, float]) -> float:
    """Rounded, so that the noise of a measurement does not change the candidates."""
    kernels = {kernel.id for name in region for kernel in members(program, name)}
    return round(sum(heat.get(name, 0.0) for name in kernels), 1)
