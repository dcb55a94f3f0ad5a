"""``benchmarks/measurement_economy.md`` from the rows: every number and every conclusion is computed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from mtmc.bench.economy import figures as of
from mtmc.bench.economy.cells import factor, grid, number, optional, percent, seconds, signed
from mtmc.bench.economy.decisions import decides
from mtmc.bench.economy.figures import STEPS, Tree
from mtmc.bench.economy.rows import EXHAUSTIVE, NodeRow, Row, SessionRow
from mtmc.bench.row import BenchHeader


def page(header: BenchHeader, rows: Sequence[Row]) -> str:
    """Markdown."""
    programs = [str(name) for name in header.flags["programs"]]
    trees = list(of.trees(programs, rows).values())
    parts = [
        _head(header, rows),
        decides(trees, rows, header.hardware is not None),
        _cost(trees, rows),
        _candidates(trees),
        _noise(trees),
        _moves(trees),
        _sums(trees),
        _budgets(trees),
        _cut(trees, rows, header),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(header: BenchHeader, rows: Sequence[Row]) -> str:
    card = f"one {header.hardware.name}, driver {header.hardware.driver}" if header.hardware else "no GPU"
    versions = ", ".join(f"{name} {header.versions[name]}" for name in ("torch", "triton") if name in header.versions)
    lines = [
        "# Measurement economy",
        "",
        "What a judged program costs and tells, on the first two decisions of a few examples. Written by "
        "`mtmc bench economy-report` from the rows of a run; nothing here was typed.",
        "",
        f"- Machine: {card}; {versions}. Begun {header.started}.",
        f"- Command: `{header.command}`",
        f"- Sessions: {_sessions(rows)}",
    ]
    if header.hardware is None:
        lines += ["", "**No GPU: every time on this page is a roofline estimate. Nothing here was measured.**"]
    return "\n".join(lines)


def _sessions(rows: Sequence[Row]) -> str:
    ends = [row for row in rows if isinstance(row, SessionRow)]
    last = max((row.at for row in rows), default=0.0)
    if not ends:
        return f"one, which did not end by itself; the last row came after {last:.0f} s."
    words = [f"{end.workers} lanes, ended after {end.at:.0f} s ({end.reason})" for end in ends]
    return "; ".join(words) + "."


def _cost(trees: list[Tree], rows: Sequence[Row]) -> str:
    rate = of.rate(rows)
    nodes = [row for row in rows if isinstance(row, NodeRow) and row.measured]
    body = []
    for tree in trees:
        own = [row for row in nodes if row.program == tree.name]
        columns: list[list[float]] = [
            [row.code_s for row in own], [row.build_s for row in own], [row.gpu_lock_s for row in own]
        ]  # fmt: skip
        body.append([tree.name, str(len(own)), *(seconds(of.spread(values)) for values in columns)])
    table = grid(["program", "judged", "code s", "build s", "card s"], body)
    return (
        "## Judged nodes per second\n\n"
        f"- {rate.judged} nodes judged ({rate.of_tree} of the tree, the others in episodes), {rate.retimed} timed "
        f"again, {rate.looked_up} more ways led to a known verdict.\n"
        f"- {rate.wall_s:.0f} s of wall time, of which {rate.start_s:.0f} s until the first verdict; the card was held "
        f"{rate.lock_s:.0f} s by verdicts.\n"
        f"- {number(rate.per_second)} verdicts a second of wall time after that, {number(rate.per_lock_second)} a "
        "second of card time.\n\n"
        f"Medians (and 90th percentiles) of one judged node:\n\n{table}"
    )


def _candidates(trees: list[Tree]) -> str:
    body = []
    for tree in trees:
        root = tree.states.get(())
        deep = of.spread(float(row.candidates) for row in tree.expanded)
        cut = of.spread(float(row.cut) for row in tree.expanded)
        count, twice = of.reached_twice([tree])
        body.append(
            [
                tree.name,
                f"{root.candidates} ({root.cut})" if root else "–",
                f"{deep.median:.0f} ({cut.median:.0f})" if deep and cut else "–",
                f"{len(tree.expanded)}/{len(tree.parents)}",
                str(count) if count else "–",
                percent(twice),
            ]
        )
    head = ["program", "root (cut)", "depth 1, median (cut)", "states listed", "distinct states", "reached twice"]
    count, share = of.reached_twice(trees)
    return (
        "## Candidates, and states reached twice\n\n"
        "Candidates include `stop`; *cut* are proposals beyond the quota. A state counts as reached by every listed "
        "candidate that leads to it, judged or not.\n\n"
        f"{grid(head, body)}\n\nTogether: {count} distinct states, {percent(share)} reached at least twice."
    )


def _noise(trees: list[Tree]) -> str:
    body = []
    for tree in trees:
        across = of.spread(of.noise(tree))
        inside = of.spread(row.spread for row in tree.nodes.values() if row.same != "state" and row.spread is not None)
        times = sum(len(rows) for rows in tree.repeats.values())
        body.append(
            [
                tree.name, str(len(tree.repeats)), str(times), optional(across.median if across else None),
                optional(across.high if across else None), optional(inside.median if inside else None),
            ]
        )  # fmt: skip
    head = ["program", "nodes", "timings", "range, median", "range, high", "inside one timing"]
    return (
        "## Repeat noise of a timing\n\n"
        "The root and a few states of depth 1 were timed again in rounds over the rest of the run, between other "
        "programs. *Range*: of the medians over their median. *Inside*: interquartile range over median of the samples "
        f"of one timing.\n\n{grid(head, body)}"
    )


def _moves(trees: list[Tree]) -> str:
    changes = [change for tree in trees for change in tree.changes]
    kinds: dict[str, list[of.Change]] = defaultdict(list)
    for change in changes:
        kinds[change.kind].append(change)
    groups = [
        *((f"`{kind}`", kinds[kind]) for kind in sorted(kinds)),
        *((tree.name, tree.changes) for tree in trees),
        ("**all**", changes),
    ]
    body = []
    for name, group in groups:
        found = of.moves(group)
        shares = [found.faster, found.slower, found.still, found.rejected] if found else [math.nan] * 4
        body.append([name, str(found.count if found else 0), *map(percent, shares)])
    head = ["actions", "judged", "more than 3% faster", "more than 3% slower", "within 3%", "rejected"]
    return f"## Actions that move the time\n\n{grid(head, body)}"


def _sums(trees: list[Tree]) -> str:
    groups: dict[str, list[NodeRow]] = defaultdict(list)
    for tree in trees:
        for row in tree.nodes.values():
            groups["1 kernel" if row.kernels == 1 else "2 to 4 kernels" if row.kernels < 5 else "5 or more"].append(row)
    body = []
    for name in ("1 kernel", "2 to 4 kernels", "5 or more"):
        found = of.spread(of.sum_errors(groups[name]))
        cells = [found.low, found.median, found.high] if found else [math.nan] * 3
        body.append([name, str(found.count if found else 0), *(signed(value) for value in cells)])
    return (
        "## Summed kernel times against the whole program\n\n"
        "(sum - whole) / whole: negative where the whole takes more than its kernels.\n\n"
        + grid(["programs with", "nodes", "10th percentile", "median", "90th percentile"], body)
    )


def _budgets(trees: list[Tree]) -> str:
    columns = [
        *(("heuristic", steps) for steps in STEPS),
        *(("random", steps) for steps in STEPS),
        *((EXHAUSTIVE, steps) for steps in (1, 2)),
    ]
    body = []
    for tree in trees:
        cells = [
            tree.speed(tree.exhaustive(steps)) if name == EXHAUSTIVE else tree.policy_speed(name, steps)
            for name, steps in columns
        ]
        marked = [
            factor(cell) + ("*" if cell and name == EXHAUSTIVE and not _complete(tree, steps) else "")
            for cell, (name, steps) in zip(cells, columns, strict=True)
        ]
        body.append([tree.name, *marked])
    means = [of.mean_speed(trees, name, steps) for name, steps in columns]
    body.append(["**geometric mean**", *(factor(mean and mean[1]) for mean in means)])
    base = "eager" if all(t.root is None or t.root.eager_ms for t in trees) else "the program as captured"
    return (
        "## Best speed within a budget\n\n"
        f"Against {base}. Heuristic and random: judged steps of an episode (one of the heuristic's may hold several "
        "actions), random as the geometric mean of its seeds; both without a final check. Exhaustive: actions, over "
        "what was measured; `*`: not all of it was. The tree does not reach 4 and 8 actions, so there is no "
        "exhaustive choice for them.\n\n" + grid(["program", *(f"{name} {steps}" for name, steps in columns)], body)
    )


def _complete(tree: Tree, steps: int) -> bool:
    """All candidates within so many actions have a verdict."""
    if tree.width == 0 or len(tree.at_depth(1)) < tree.width:
        return False
    full = len(tree.expanded) == len(tree.parents) and len(tree.at_depth(2)) >= tree.ways
    return steps < 2 or full


def _cut(trees: list[Tree], rows: Sequence[Row], header: BenchHeader) -> str:
    seeds, repeats = int(header.flags["seeds"]), int(header.flags["repeats"])
    asked = (1 + seeds) * len(STEPS) if seeds else 0
    body = []
    for tree in trees:
        done = sum(not episode.cut for episode in tree.episodes)
        rounds = max((row.round for found in tree.repeats.values() for row in found), default=0)
        body.append(
            [
                tree.name, f"{len(tree.at_depth(1))}/{tree.width or '?'}",
                f"{len(tree.at_depth(2))}/{_about(tree)}", f"{done}/{asked}", f"{rounds}/{repeats}",
            ]
        )  # fmt: skip
    table = grid(["program", "depth 1", "depth 2", "episodes", "rounds of repeats"], body)
    notes = []
    if tree_limit := int(header.flags["limit"]):
        notes.append(f"At most {tree_limit} children of a state were asked for.")
    if int(header.flags["depth"]) < 2:
        notes.append("Depth 2 was not asked for.")
    notes += [f"{row.program}, {row.what}: {row.message}" for row in of.failures(rows)]
    listed = "\n".join(f"- {note}" for note in notes)
    return (
        "## What was left out\n\n"
        "Done of what there is; depth 2 is sampled in a fixed pseudo-random order, a few children of every depth-1 "
        "state in turn. `about`: the states whose candidates were not listed are taken as the average of those that "
        f"were.\n\n{table}" + (f"\n\n{listed}" if listed else "")
    )


def _about(tree: Tree) -> str:
    if not tree.expanded:
        return "?"
    whole = len(tree.expanded) == len(tree.parents)
    return f"{tree.ways}" if whole else f"about {tree.ways_expected:.0f}"
