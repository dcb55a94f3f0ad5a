"""``benchmarks/measurement_economy.md`` from the rows: every number and every conclusion is computed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from mtmc.bench.economy import figures as of
from mtmc.bench.economy.figures import STEPS, Spread, Tree
from mtmc.bench.economy.rows import EXHAUSTIVE, NodeRow, Row, SessionRow
from mtmc.bench.row import BenchHeader

ONLINE_STEPS = 100_000
"""Judged steps that an on-policy run takes, as an assumption that the page states."""
ONLINE_HOURS = 24.0
"""Card hours that such a run may take."""
TWICE = 0.2
"""Share of states reached twice from which on values belong to states and not to paths."""
AGREES = 0.95
"""Share of moves whose direction the summed times must give to stand in for a whole measurement."""
TEACHES = 1.05
"""Speed of the exhaustive choice over the heuristic's from which on it is worth imitating."""
BUSY = 0.7
"""Share of the wall time that the card is held from which on the card is what limits."""
RARE = 0.25
"""Share of actions that move the time below which a reward is sparse."""


def page(header: BenchHeader, rows: Sequence[Row]) -> str:
    """Markdown."""
    programs = [str(name) for name in header.flags["programs"]]
    trees = list(of.trees(programs, rows, int(header.flags["limit"])).values())
    parts = [
        _head(header, rows),
        _decides(trees, rows),
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


def _decides(trees: list[Tree], rows: Sequence[Row]) -> str:
    """What the figures decide for the training, each by a stated rule."""
    points = [
        _rule_rate(rows),
        _rule_noise(trees),
        _rule_sparse(trees),
        _rule_states(trees),
        _rule_sums(trees),
        _rule_teacher(trees),
        _rule_horizon(trees),
    ]
    return "## What this decides for the training\n\n" + "\n".join(f"{n}. {p}" for n, p in enumerate(points, 1))


def _rule_rate(rows: Sequence[Row]) -> str:
    rate = of.rate(rows)
    if not (rate.judged and rate.per_second > 0):
        return "**Reward source: open.** Too few nodes were judged to say what an hour of the card gives."
    hours = ONLINE_STEPS / rate.per_second / 3600
    how = (
        "so measured rewards are affordable inside the training loop (on-policy)"
        if hours <= ONLINE_HOURS
        else "so a policy is trained on stored verdicts (offline), and the card measures only what the store lacks"
    )
    limit = (
        f"The card was held {_percent(rate.lock_share)} of that time: "
        if not math.isnan(rate.lock_share)
        else "How long the card was held is unknown: "
    )
    limit += (
        "it is the limit, and more cards help."
        if rate.lock_share >= BUSY
        else "compiling and preparing limit, so more lanes or a cache of builds come before more cards."
    )
    return (
        f"**Reward source.** {rate.per_second:.2f} verdicts a second make {rate.per_second * 3600:,.0f} an hour; "
        f"{ONLINE_STEPS:,} steps of an on-policy run (assumed) take {hours:.1f} h against {ONLINE_HOURS:.0f} h that "
        f"we allow, {how}. {limit}"
    )


def _rule_noise(trees: list[Tree]) -> str:
    pairs = of.spread(value for tree in trees for value in of.pair_noise(tree))
    if pairs is None:
        return "**Dead zone of the reward: open.** No node was timed again."
    verdict = (
        "below the 3% that counts as a move, so one timing a step is enough"
        if pairs.high < of.MOVE
        else "above the 3% that counts as a move, so a reward needs a second timing wherever it is below that"
    )
    return (
        f"**Dead zone of the reward.** Two timings of one program differ by less than {_percent(pairs.high)} in 90% of "
        f"{pairs.count} pairs. Gains below that are noise and get no reward; it is {verdict}."
    )


def _rule_sparse(trees: list[Tree]) -> str:
    found = of.moves([change for tree in trees for change in tree.changes])
    if found is None:
        return "**Density of the reward: open.** No action was judged."
    verdict = (
        "rare: a critic or a pre-trained prior must say where to look before exploration pays"
        if found.moved < RARE
        else "frequent enough for single-step advantages to carry a signal"
    )
    return (
        f"**Density of the reward.** {_percent(found.moved)} of {found.count} actions move the time by more than 3% "
        f"({_percent(found.faster)} faster, {_percent(found.slower)} slower), {_percent(found.rejected)} are rejected. "
        f"Moves are {verdict}."
    )


def _rule_states(trees: list[Tree]) -> str:
    count, share = of.reached_twice(trees)
    if not count:
        return "**States or paths: open.** No state of depth 1 was expanded."
    verdict = (
        "values are kept by state (a graph, looked up by structural hash), and a batch is deduplicated by state"
        if share >= TWICE
        else "a tree of paths loses little, and deduplication by structural hash is a convenience"
    )
    return f"**States or paths.** {_percent(share)} of {count} listed states are reached at least twice: {verdict}."


def _rule_sums(trees: list[Tree]) -> str:
    agreement = of.sum_agreement([change for tree in trees for change in tree.changes])
    errors = of.spread(map(abs, (e for tree in trees for e in of.sum_errors(tree.nodes.values()))))
    if agreement is None or errors is None:
        return "**Kernel times as a stand-in: open.** No moved action has both times."
    count, share = agreement
    verdict = (
        "so single kernels may be judged alone in training, with a whole measurement at the end"
        if share >= AGREES
        else "so the reward stays the whole program's time, and kernel times only inform the observation"
    )
    return (
        f"**Kernel times as a stand-in.** Summed kernel times miss the whole by {_percent(errors.median)} (median) and "
        f"{_percent(errors.high)} (90th percentile), and give the direction of {_percent(share)} of {count} moves "
        f"(rule: {_percent(AGREES)}), {verdict}."
    )


def _rule_teacher(trees: list[Tree]) -> str:
    words = []
    for steps in (1, 2):
        both = [
            (best / own)
            for tree in trees
            if (best := tree.speed(tree.exhaustive(steps))) and (own := tree.policy_speed("heuristic", steps))
        ]
        mean = of.geometric_mean(both)
        if mean is not None:
            words.append((steps, len(both), mean))
    if not words:
        return "**Teacher: open.** No program has both a heuristic episode and a measured tree."
    best = max(mean for _, _, mean in words)
    verdict = (
        "the measured best choice is worth imitating (supervised start from the tree)"
        if best >= TEACHES
        else "the tree teaches little that the heuristic does not do already: its episodes are the supervised start"
    )
    told = "; ".join(
        f"within {s} {_steps(s)} {mean:.3f} times the heuristic's speed ({n} programs)" for s, n, mean in words
    )
    return (
        f"**Teacher.** The exhaustive choice reaches {told}: {verdict}. A judged step of the heuristic may hold several "
        "actions, one of the tree holds one; and a fastest of many timings is flattered by their noise."
    )


def _rule_horizon(trees: list[Tree]) -> str:
    gains = []
    for short, long in zip(STEPS, STEPS[1:], strict=False):
        both = [
            late / early
            for tree in trees
            if (early := tree.policy_speed("heuristic", short)) and (late := tree.policy_speed("heuristic", long))
        ]
        mean = of.geometric_mean(both)
        if mean is not None:
            gains.append((short, long, mean))
    if not gains:
        return "**Length of an episode: open.** No heuristic episode was run."
    useful = [long for _, long, mean in gains if mean > 1 + of.MOVE]
    length = max(useful, default=gains[0][0])
    told = ", ".join(f"{short} to {long}: {mean:.3f}" for short, long, mean in gains)
    chance = _chance(trees)
    return (
        f"**Length of an episode.** The heuristic's speed grows by (steps: factor) {told}. The last doubling that brings "
        f"more than 3% ends at {length} {_steps(length)}, so training episodes start with that budget.{chance}"
    )


def _chance(trees: list[Tree]) -> str:
    steps = STEPS[-1]
    ratios = [
        own / chance
        for tree in trees
        if (own := tree.policy_speed("heuristic", steps)) and (chance := tree.policy_speed("random", steps))
    ]
    mean = of.geometric_mean(ratios)
    if mean is None:
        return ""
    word = "a prior is needed from the start" if mean > TEACHES else "random exploration is a usable start"
    return f" After {steps} steps the heuristic is {mean:.3f} times as fast as chance: {word}."


def _cost(trees: list[Tree], rows: Sequence[Row]) -> str:
    rate = of.rate(rows)
    nodes = [row for row in rows if isinstance(row, NodeRow) and row.measured]
    body = []
    for tree in trees:
        own = [row for row in nodes if row.program == tree.name]
        columns: list[list[float]] = [
            [row.code_s for row in own], [row.build_s for row in own], [row.gpu_lock_s for row in own]
        ]  # fmt: skip
        body.append([tree.name, str(len(own)), *(_seconds(of.spread(values)) for values in columns)])
    table = _table(["program", "judged", "code s", "build s", "card s"], body)
    return (
        "## Judged nodes per second\n\n"
        f"- {rate.judged} nodes judged ({rate.of_tree} of the tree, the others in episodes), {rate.retimed} timed "
        f"again, {rate.looked_up} more ways led to a known verdict.\n"
        f"- {rate.wall_s:.0f} s of wall time, of which {rate.start_s:.0f} s until the first verdict; the card was held "
        f"{rate.lock_s:.0f} s by verdicts.\n"
        f"- {_number(rate.per_second)} verdicts a second of wall time after that, {_number(rate.per_lock_second)} a "
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
                _percent(twice),
            ]
        )
    head = ["program", "root (cut)", "depth 1, median (cut)", "states listed", "distinct states", "reached twice"]
    count, share = of.reached_twice(trees)
    return (
        "## Candidates, and states reached twice\n\n"
        "Candidates include `stop`; *cut* are proposals beyond the quota. A state counts as reached by every listed "
        "candidate that leads to it, judged or not.\n\n"
        f"{_table(head, body)}\n\nTogether: {count} distinct states, {_percent(share)} reached at least twice."
    )


def _noise(trees: list[Tree]) -> str:
    body = []
    for tree in trees:
        across = of.spread(of.noise(tree))
        inside = of.spread(row.spread for row in tree.nodes.values() if row.measured and row.spread is not None)
        times = sum(len(rows) for rows in tree.repeats.values())
        body.append(
            [
                tree.name, str(len(tree.repeats)), str(times), _share(across and across.median),
                _share(across and across.high), _share(inside and inside.median),
            ]
        )  # fmt: skip
    head = ["program", "nodes", "timings", "range, median", "range, high", "inside one timing"]
    return (
        "## Repeat noise of a timing\n\n"
        "The root and a few states of depth 1 were timed again in rounds over the rest of the run, between other "
        "programs. *Range*: of the medians over their median. *Inside*: interquartile range over median of the samples "
        f"of one timing.\n\n{_table(head, body)}"
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
        body.append([name, str(found.count if found else 0), *map(_percent, shares)])
    head = ["actions", "judged", "more than 3% faster", "more than 3% slower", "within 3%", "rejected"]
    return f"## Actions that move the time\n\n{_table(head, body)}"


def _sums(trees: list[Tree]) -> str:
    groups: dict[str, list[NodeRow]] = defaultdict(list)
    for tree in trees:
        for row in tree.nodes.values():
            groups["1 kernel" if row.kernels == 1 else "2 to 4 kernels" if row.kernels < 5 else "5 or more"].append(row)
    body = []
    for name in ("1 kernel", "2 to 4 kernels", "5 or more"):
        found = of.spread(of.sum_errors(groups[name]))
        cells = [found.low, found.median, found.high] if found else [math.nan] * 3
        body.append([name, str(found.count if found else 0), *(_signed(value) for value in cells)])
    return (
        "## Summed kernel times against the whole program\n\n"
        "(sum - whole) / whole: negative where the whole takes more than its kernels.\n\n"
        + _table(["programs with", "nodes", "10th percentile", "median", "90th percentile"], body)
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
            _times(cell) + ("*" if cell and name == EXHAUSTIVE and not _complete(tree, steps) else "")
            for cell, (name, steps) in zip(cells, columns, strict=True)
        ]
        body.append([tree.name, *marked])
    means = [of.mean_speed(trees, name, steps) for name, steps in columns]
    body.append(["**geometric mean**", *(_times(mean and mean[1]) for mean in means)])
    base = "eager" if all(t.root is None or t.root.eager_ms for t in trees) else "the program as captured"
    return (
        "## Best speed within a budget\n\n"
        f"Against {base}. Heuristic and random: judged steps of an episode (one of the heuristic's may hold several "
        "actions), random as the geometric mean of its seeds; both without a final check. Exhaustive: actions, over "
        "what was measured; `*`: not all of it was. The tree does not reach 4 and 8 actions, so there is no "
        "exhaustive choice for them.\n\n" + _table(["program", *(f"{name} {steps}" for name, steps in columns)], body)
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
    table = _table(["program", "depth 1", "depth 2", "episodes", "rounds of repeats"], body)
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


# ---- cells ------------------------------------------------------------------------------------------------------


def _steps(count: int) -> str:
    return "step" if count == 1 else "steps"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}%"


def _share(value: float | None) -> str:
    return "–" if value is None else _percent(value)


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:+.1f}%"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _times(value: float | None) -> str:
    return "–" if not value else f"{value:.3f}"


def _seconds(found: Spread | None) -> str:
    return f"{found.median:.2f} ({found.high:.2f})" if found else "–"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))
