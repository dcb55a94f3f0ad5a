"""The list of candidates, the printed lines, classes of kernels, traces, and why an action is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtmc.actions import ACTIONS, Action, apply, encode, fuse, parse, propose, split, tile
from mtmc.actions.regions import classes, members
from mtmc.actions.trace import read, replay, write
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction
from mtmc.ir.codec import structural_hash
from mtmc.ir.program import Library, Program, Tile
from mtmc.ir.schedule import Schedule
from tests.unit.actions.small import Small, number

LINES = [
    "tile k0 (linear, line 10) to 128x128x64 with 8 warps",
    "tile k0 (linear, line 10) to 64x64x32 with 4 warps and 3 stages",
    "tile k1 (maximum, line 11) to 1024 with 1 warp",
    "tile k2 (softmax, line 12) to 1x4096 in several passes with 16 warps backwards",
    "fuse k0 (linear, line 10) and k1 (maximum, line 11)",
    "pipeline k0 (linear, line 10) with 4 stages",
    "pipeline k0 (linear, line 10) with 1 stage",
    "make k0 (linear, line 10) persistent with tensor descriptors",
    "make k0 (linear, line 10) persistent",
    "reorder the grid of k0 (linear, line 10) in groups of 8",
    "reorder the grid of k2 (softmax, line 12) backwards",
    "reorder the grid of k2 (softmax, line 12) forwards",
    "split the reduction of k2 (softmax, line 12) across 16 programs",
    "encode the operands of k0 (linear, line 10) as split fp16",
    "encode the operands of k0 (linear, line 10) as split fp16, K-major",
    "round the operands of k0 (linear, line 10) to fp16",
    "revert k0 (linear, line 10) to the library",
    "generate all with default schedules",
    "stop",
]


def three() -> Program:
    small = Small()
    small.softmax(small.map("maximum", small.linear(small.input(64, 128), 256), number(0.0)))
    return small.program()


def generated() -> Program:
    """All three as tiles; a float32 product stays in the library until somebody tiles or encodes it."""
    program = apply(three(), parse("generate all with default schedules"))
    assert [isinstance(kernel.impl, Tile) for kernel in program.kernels] == [False, True, True]
    return apply(program, parse("tile k0 to 64x128x32 with 4 warps and 3 stages"))


def blocks(count: int) -> Program:
    """Equal blocks of a linear layer and an activation, as a deep network has."""
    small = Small()
    x = small.input(32, 64)
    for _ in range(count):
        x = small.map("maximum", small.linear(x, 64), number(0.0))
    return small.program()


@pytest.mark.parametrize("line", LINES)
def test_every_line_parses_and_prints_as_it_was(line: str) -> None:
    assert parse(line).describe(three()) == line


@pytest.mark.parametrize("line", LINES)
def test_notes_are_for_people_only(line: str) -> None:
    assert parse(re.sub(r"\([^()]*\)", "(another note, lines 1, 2)", line)) == parse(line)
    assert parse(re.sub(r" \([^()]*\)", "", line)) == parse(line)


region = st.from_regex(r"k[0-9]{1,3}\*?", fullmatch=True)
count = st.integers(1, 4096)
schedules = st.builds(
    Schedule,
    form=st.just("row"),
    tile=st.lists(count, min_size=1, max_size=3).map(tuple),
    loop=st.booleans(),
    warps=st.integers(1, 32),
    stages=st.integers(1, 8),
    order=st.integers(0, 1),
)
actions = st.one_of(
    st.builds(tile.action, region, schedules),
    st.builds(fuse.action, region, region),
    st.builds(split.action, region, count),
    st.builds(encode.action, region, st.sampled_from(("split", "fp16")), st.sampled_from(("kept", "kmajor"))),
    st.builds(lambda r, n: Action("pipeline", (r,), (("stages", n),)), region, st.integers(1, 8)),
    st.builds(lambda r, d: Action("pipeline", (r,), (("persistent", True), ("descriptors", d))), region, st.booleans()),
    st.builds(lambda r, n: Action("reorder", (r,), (("group", n),)), region, st.integers(1, 64)),
    st.builds(lambda r, n: Action("reorder", (r,), (("order", n),)), region, st.integers(0, 1)),
    st.builds(lambda r: Action("revert", (r,)), region),
)


class _Anything:
    """A Program in which every region exists, alone and in a class of two."""

    def __init__(self, action: Action) -> None:
        small = Small()
        for _ in range(2):
            small.map("exp", small.input(4))
        program = small.program()
        first = program.kernels[0]
        names = dict.fromkeys(region.removesuffix("*") for region in action.region)
        kernels = [replace(first, id=f"{before}{name}", lines=(3, 7)) for name in names for before in ("", "x")]
        self.program = Program(program.buffers, tuple(kernels), program.outputs)


@given(actions)
@settings(max_examples=300, deadline=None)
def test_print_and_parse_are_inverse(action: Action) -> None:
    assert parse(action.describe(_Anything(action).program)) == action


@pytest.mark.parametrize("line", ["", "tile", "fuse k0", "tile k0 to big with 8 warps", "explode k0", "stop now"])
def test_other_text_is_refused(line: str) -> None:
    with pytest.raises(IllegalAction, match="is no action"):
        parse(line)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tile k0 to 100x64x32 with 4 warps", "powers of two"),
        ("tile k0 to 64x64 with 4 warps", "has 3 sizes"),
        ("tile k0 to 64x64x64 with 5 warps", "power of two up to 32"),
        ("tile k9 to 64x64x64 with 4 warps", "no kernel"),
        ("pipeline k0 with 4 stages", "tile it first"),
        ("make k0 persistent", "tile it first"),
        ("reorder the grid of k0 in groups of 8", "tile it first"),
        ("revert k0 to the library", "already runs in the library"),
        ("split the reduction of k1 across 4 programs", "nothing to split"),
        ("encode the operands of k2 as split fp16", "no matrix product"),
    ],
)
def test_refusals_say_why(line: str, reason: str) -> None:
    with pytest.raises(IllegalAction, match=reason):
        apply(three(), parse(line))


def test_generated_kernels_refuse_what_their_form_has_not() -> None:
    program = generated()
    assert all(isinstance(kernel.impl, Tile) for kernel in program.kernels)
    for line, reason in (
        ("pipeline k1 with 4 stages", "no inner loop"),
        ("reorder the grid of k1 in groups of 8", "no groups"),
        ("reorder the grid of k0 backwards", "only pointwise and row"),
        ("generate all with default schedules", "no library kernel is left"),
    ):
        with pytest.raises(IllegalAction, match=reason):
            apply(program, parse(line))


def test_schedule_actions_change_only_the_schedule() -> None:
    program = generated()
    before = program.kernel("k0").impl
    assert isinstance(before, Tile)
    for line, field, value in (
        ("pipeline k0 with 5 stages", "stages", 5),
        ("make k0 persistent", "persistent", True),
        ("make k0 persistent with tensor descriptors", "descriptors", True),
        ("reorder the grid of k0 in groups of 16", "group", 16),
        ("tile k0 to 32x32x32 with 4 warps and 2 stages", "tile", (32, 32, 32)),
    ):
        after = apply(program, parse(line))
        schedule = after.kernel("k0").impl
        assert isinstance(schedule, Tile)
        assert getattr(schedule.schedule, field) == value != getattr(before.schedule, field)
        assert after.kernel("k0").spec == program.kernel("k0").spec
    assert isinstance(apply(program, parse("revert k0 to the library")).kernel("k0").impl, Library)


def test_candidates_are_legal_distinct_and_the_same_each_time() -> None:
    program = generated()
    found = propose(program, H200)
    assert found == propose(program, H200)
    assert 20 < len(found.actions) <= 64
    hashes = [structural_hash(apply(program, action)) for action in found.actions if action.kind != "stop"]
    assert len(set(hashes)) == len(hashes) and structural_hash(program) not in hashes
    kinds = [module.KIND for module in ACTIONS]
    order = [kinds.index(action.kind) for action in found.actions]
    assert order == sorted(order)
    assert {"fuse", "tile", "pipeline", "reorder", "encode", "revert", "stop"} <= {
        action.kind for action in found.actions
    }


def test_a_small_limit_keeps_one_of_each_kind() -> None:
    program = generated()
    few = propose(program, H200, limit=12)
    assert len(few.actions) <= 12 and few.cut > 0
    assert "stop" in [action.kind for action in few.actions]


def test_hot_regions_get_more_candidates() -> None:
    program = generated()

    def count(shares: dict[str, float], name: str) -> int:
        found = propose(program, H200, shares, limit=20).actions
        return sum(action.region == (name,) for action in found)

    for name in ("k0", "k1", "k2"):
        hot = {kernel.id: 0.9 if kernel.id == name else 0.05 for kernel in program.kernels}
        cold = {kernel.id: 0.05 if kernel.id == name else 0.475 for kernel in program.kernels}
        assert count(hot, name) > count(cold, name)


def test_equal_kernels_are_one_decision() -> None:
    program = blocks(5)
    assert [len(equal) for equal in classes(program)] == [5, 5]
    assert [kernel.id for kernel in members(program, "k2*")] == ["k0", "k2", "k4", "k6", "k8"]
    action = parse("tile k0 and its 4 equals (linear, line 10) to 32x64x32 with 4 warps and 3 stages")
    assert action.region == ("k0*",)
    after = apply(program, action)
    tiled = [kernel.id for kernel in after.kernels if isinstance(kernel.impl, Tile)]
    assert tiled == ["k0", "k2", "k4", "k6", "k8"]
    lines = [a.describe(program) for a in propose(program, H200).actions]
    assert "fuse k0 and its 4 equals (linear, line 10) and k1 and its 4 equals (maximum, line 11)" in lines
    fused = apply(program, parse(next(line for line in lines if line.startswith("fuse k0"))))
    assert [kernel.id for kernel in fused.kernels] == ["k0", "k2", "k4", "k6", "k8"]


def test_a_trace_replays() -> None:
    program = blocks(3)
    lines = (
        "generate all with default schedules",
        "fuse k0 and its 2 equals (linear, line 10) and k1 and its 2 equals (maximum, line 11)",
        "encode the operands of k0 and its 2 equals (linear+maximum, lines 10, 11) as split fp16",
    )
    text = "# a note\n\n" + "\n".join(lines) + "\n"
    result = program
    for line in lines:
        result = apply(result, parse(line))
    assert structural_hash(replay(program, text)) == structural_hash(result)
    assert write(program, read(text)) == "\n".join(lines) + "\n"
    with pytest.raises(IllegalAction, match="action 2 of the trace"):
        replay(program, "stop\nfuse k0 and k7\n")
