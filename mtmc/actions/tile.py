"""Tile: give a library kernel generated code, or give generated code other tiles.

::

    k3 library  t3[m, n] = aten.linear(x, fc.weight, fc.bias)
 ->
    k3 tile matmul  grid m/128 n/128  loop k/64  8 warps
       t3[m, n] = sum_k x[m, k] * fc.weight[n, k] + fc.bias[n]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mtmc.actions.action import Action
from mtmc.actions.regions import REGION, named, representatives, token
from mtmc.actions.rewriting import form_of, known, require, reschedule
from mtmc.data.hardware import Hardware
from mtmc.errors import IRError
from mtmc.ir.program import Program, Tile
from mtmc.ir.schedule import Schedule

KIND = "tile"
_LINE = re.compile(
    rf"tile ({REGION}) to (\d+(?:x\d+)*)( in several passes)? with (\d+) warps?"
    r"(?: and (\d+) stages)?( backwards)?"
)


def action(region: str, schedule: Schedule) -> Action:
    params = (
        ("tile", schedule.tile),
        ("warps", schedule.warps),
        ("loop", schedule.loop),
        ("stages", schedule.stages),
        ("order", schedule.order),
    )
    return Action(KIND, (region,), params)


def propose(program: Program, hardware: Hardware) -> Iterator[Action]:
    """The form's default schedule first, then its grid of tiles."""
    for region, kernel in representatives(program):
        try:
            form = form_of(program, kernel)
            known(program, kernel)
        except IRError:
            continue
        for schedule in dict.fromkeys((form.default(program, hardware), *form.tiles(program))):
            if not (isinstance(kernel.impl, Tile) and _knobs(kernel.impl.schedule) == _knobs(schedule)):
                yield action(region, schedule)


def _knobs(schedule: Schedule) -> tuple[object, ...]:
    return schedule.tile, schedule.warps, schedule.loop, schedule.stages, schedule.order


def check(program: Program, action: Action) -> None:
    kernel = program.kernel(action.region[0])
    known(program, kernel)
    tile = action.get("tile")
    require(isinstance(tile, tuple) and all(size > 0 for size in tile), f"{tile} is not a tile")
    sizes = tile if isinstance(tile, tuple) else ()
    require(all(size & (size - 1) == 0 for size in sizes), f"{_sizes(sizes)} is not a tile of powers of two")
    warps = action.number("warps", 4)
    require(1 <= warps <= 32 and warps & (warps - 1) == 0, f"{warps} warps: it takes a power of two up to 32")


def rewrite(program: Program, action: Action, hardware: Hardware) -> Program:
    check(program, action)
    kernel = program.kernel(action.region[0])
    form = form_of(program, kernel)
    default = form.default(program, hardware)
    tile = action.get("tile")
    assert isinstance(tile, tuple)
    require(
        len(tile) == len(default.tile),
        f"{kernel.id} ({kernel.note}) is a {form.name} kernel: its tile has {len(default.tile)} sizes, not {len(tile)}",
    )
    base = default
    if isinstance(kernel.impl, Tile) and kernel.impl.schedule.form == form.name:
        base = kernel.impl.schedule
    schedule = replace(
        base,
        tile=tile,
        warps=action.number("warps", 4),
        loop=bool(action.get("loop", False)),
        stages=action.number("stages", 1),
        order=action.number("order", 0),
    )
    return reschedule(program, kernel, schedule)


def _sizes(tile: object) -> str:
    return "x".join(map(str, tile)) if isinstance(tile, tuple) else str(tile)


def describe(program: Program, action: Action) -> str:
    warps, stages = action.number("warps", 4), action.number("stages", 1)
    text = f"tile {named(program, action.region[0])} to {_sizes(action.get('tile'))}"
    text += " in several passes" if action.get("loop", False) else ""
    text += f" with {warps} warp{'' if warps == 1 else 's'}"
    text += f" and {stages} stages" if stages > 1 else ""
    return text + (" backwards" if action.number("order") else "")


def parse(line: str) -> Action | None:
    found = _LINE.fullmatch(line)
    if not found:
        return None
    region, sizes, loop, warps, stages, order = found.groups()
    params = (
        ("tile", tuple(int(size) for size in sizes.split("x"))),
        ("warps", int(warps)),
        ("loop", loop is not None),
        ("stages", int(stages or 1)),
        ("order", 1 if order else 0),
    )
    return Action(KIND, (token(region),), params)
