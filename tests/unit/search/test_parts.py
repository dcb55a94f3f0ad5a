"""The small parts of a search: library times, results, the written header, output paths, the small copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mtmc
from mtmc.actions import apply, parse
from mtmc.codegen.module import render
from mtmc.data.evaluation import Baselines
from mtmc.data.hardware import H200
from mtmc.errors import IllegalAction, UsageError
from mtmc.ir.program import Source
from mtmc.problem.problem import Problem
from mtmc.search.library import LibraryTimes
from mtmc.search.node import Node
from mtmc.search.output import check_writable, header, write_whole, written_source
from mtmc.search.rehearsal import Rehearsal, follow
from mtmc.search.result import SearchResult, winner
from tests.unit.search.search_fakes import PROBLEM, accepted, make_chain, rejected, timing

FUSE = parse("fuse k0 and k1")


def result(program=None, best=None, **changes) -> SearchResult:
    program = program or make_chain()
    evaluation = best or accepted(2.0, {"k0": 1.0, "k1": 0.5, "k2": 0.5})
    node = Node(program, render(program, PROBLEM), evaluation, ("fuse k0 (exp, line 6) and k1 (tanh, line 7)",))
    fields = SearchResult(PROBLEM, program, node, evaluation, Baselines(compiled=timing(3.0)), (), H200)
    return replace(fields, **changes)


def test_the_librarys_time_for_a_fused_kernel_is_that_of_its_calls() -> None:
    program, times = make_chain(), LibraryTimes()
    times.learn(program, {"k0": 1.0, "k1": 0.5, "k2": 0.25})
    times.learn(program, {"k0": 3.0})
    fused = apply(program, FUSE, H200)
    assert times.of(fused) == {"k0": 1.5}, "k2 is still the library's own"
    assert times.of(apply(program, parse("generate all with default schedules"), H200)) == {
        "k0": 1.0, "k1": 0.5, "k2": 0.25,
    }  # fmt: skip
    assert LibraryTimes().of(fused) == {}


def test_generated_kernels_teach_nothing_about_the_library() -> None:
    program, times = apply(make_chain(), FUSE, H200), LibraryTimes()
    times.learn(program, {"k0": 9.0, "k2": 0.25})
    assert times.of(program) == {}


@pytest.mark.parametrize(
    ("ms", "eager", "compiled", "who"),
    [
        (1.0, 2.0, 3.0, "mtmc"),
        (1.0, 2.0, None, "mtmc"),
        (2.0, 3.0, 1.0, "torch.compile"),
        (2.0, 1.0, 3.0, "eager"),
        (0.995, 1.0, None, "eager"),
        (None, 1.0, 1.0, None),
    ],
)
def test_the_fastest_wins_and_ties_go_to_the_baseline(ms, eager, compiled, who) -> None:
    assert winner(ms, eager, compiled) == who


def test_the_compiled_time_of_the_same_run_counts() -> None:
    assert result().compile_ms == 3.0
    best = accepted(2.0).model_copy(update={"compiled_timing": timing(2.5)})
    assert result(best=best).compile_ms == 2.5


def test_the_generated_share_is_by_time() -> None:
    program = apply(make_chain(), FUSE, H200)
    best = accepted(2.0, {"k0": 1.5, "k2": 0.5})
    assert result(program, best).generated_share == pytest.approx(0.75)
    assert not result(program, best).pure
    estimated = result(program, accepted(2.0)).generated_share
    assert estimated == pytest.approx(0.5, abs=0.05), "two kernels that move the same bytes"


def test_a_rejected_result_has_no_winner() -> None:
    assert result(best=rejected()).winner is None


def test_the_header_names_what_an_engineer_asks_for() -> None:
    text = header(result(notes=("interrupted",)), "mtmc optimize a.py --check b.py")
    for part in ("chain: written by", "torch", "NVIDIA H200", "2 ms; eager 8 ms, torch.compile 3 ms", "fuse k0",
                 "Note: interrupted", "Verify again: mtmc optimize a.py --check b.py"):  # fmt: skip
        assert part in text, part
    source = written_source(result(), "again")
    compile(source, "chain_new.py", "exec")
    assert source.startswith('"""chain: written by') and "import mtmc" not in source


def test_output_paths_are_checked_before_the_search(tmp_path: Path) -> None:
    check_writable(tmp_path / "new.py")
    with pytest.raises(UsageError, match="does not exist"):
        check_writable(tmp_path / "no" / "new.py")
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new.py"
    target.write_text("old")
    write_whole(target, "new")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]
    with pytest.raises(UsageError, match="can't be written"):
        write_whole(tmp_path / "no" / "new.py", "x")


def test_the_small_copy_follows_every_step() -> None:
    text = PROBLEM.text.replace("import torch\n", "import torch\n\nROWS = 4096\n", 1).replace("512, 1024", "ROWS, 64")
    problem = Problem(name="scaled", text=text)
    from mtmc.capture import capture

    program = capture(problem)
    small = Rehearsal.of(problem, program, 2048)
    assert small is not None and "ROWS 4096 -> " in small.problem.flags[0]
    after = apply(program, FUSE, H200)
    copied = follow(small.program, FUSE, after, H200)
    assert [k.id for k in copied.kernels] == [k.id for k in after.kernels]
    assert copied.buffer("x").shape[0].constant < after.buffer("x").shape[0].constant
    tile = parse("tile k0 to 512 with 4 warps")
    written = Source("def k0(x, t0): ...", "k0")
    sourced = program.replace_kernel("k0", replace(program.kernel("k0"), impl=written))
    assert follow(small.program, tile, sourced, H200).kernel("k0").impl == written
    with pytest.raises(IllegalAction, match="at the small sizes"):
        follow(small.program, parse("encode the operands of k0 as split fp16"), program, H200)
    assert Rehearsal.of(problem, program, 1 << 30) is None, "small enough as it is"


def test_the_public_names_are_sorted_and_there() -> None:
    assert mtmc.__all__ == sorted(mtmc.__all__) == dir(mtmc)
    assert all(getattr(mtmc, name) is not None for name in mtmc.__all__)
    with pytest.raises(AttributeError):
        mtmc.nothing  # noqa: B018
