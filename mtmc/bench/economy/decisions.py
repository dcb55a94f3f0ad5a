"""What the figures decide for the training of a policy, each by a stated rule: the text follows from the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from mtmc.bench.economy import figures as of
from mtmc.bench.economy.cells import percent, step_word
from mtmc.bench.economy.figures import STEPS, Tree
from mtmc.bench.economy.rows import Row

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


TITLE = "## What this decides for the training"


def decides(trees: list[Tree], rows: Sequence[Row], measured: bool) -> str:
    """The section of the page: a list of sentences. Estimates decide nothing."""
    if not measured:
        return f"{TITLE}\n\nNothing: there was no GPU, and estimates decide nothing."
    points = [
        _rule_rate(rows),
        _rule_noise(trees),
        _rule_sparse(trees),
        _rule_states(trees),
        _rule_sums(trees),
        _rule_teacher(trees),
        _rule_horizon(trees),
    ]
    return f"{TITLE}\n\n" + "\n".join(f"{n}. {p}" for n, p in enumerate(points, 1))


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
    limit = f"The card was held {percent(rate.lock_share)} of that time: "
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
        f"**Dead zone of the reward.** Two timings of one program differ by less than {percent(pairs.high)} in 90% of "
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
        f"**Density of the reward.** {percent(found.moved)} of {found.count} actions move the time by more than 3% "
        f"({percent(found.faster)} faster, {percent(found.slower)} slower), {percent(found.rejected)} are rejected. "
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
    return f"**States or paths.** {percent(share)} of {count} listed states are reached at least twice: {verdict}."


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
        f"**Kernel times as a stand-in.** Summed kernel times miss the whole by {percent(errors.median)} (median) and "
        f"{percent(errors.high)} (90th percentile), and give the direction of {percent(share)} of {count} moves "
        f"(rule: {percent(AGREES)}), {verdict}."
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
        f"within {s} {step_word(s)} {mean:.3f} times the heuristic's speed ({n} programs)" for s, n, mean in words
    )
    return (
        f"**Teacher.** The exhaustive choice reaches {told}: {verdict}. A judged step of the heuristic may hold "
        "several actions, one of the tree holds one; and a fastest of many timings is flattered by their noise."
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
        f"**Length of an episode.** The heuristic's speed grows by (steps: factor) {told}. The last doubling that "
        f"brings more than 3% ends at {length} {step_word(length)}: training episodes start with that budget.{chance}"
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
