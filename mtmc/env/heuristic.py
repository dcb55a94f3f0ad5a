"""The default policy: what an expert does with a roofline model and no measurements but those of this search.

In this order, each time the candidate with the largest expected gain: change *what* is computed where the roofline says
so (fuse chains, split reductions that leave the card idle, encode operands); generate all; take back what the library
did faster; then try other schedules where a kernel is far from its roofline. It stops when nothing promises 3%.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mtmc.actions import catalog, encode, fuse, generate, pipeline, reorder, revert, split, stop, tile
from mtmc.actions.action import Action
from mtmc.actions.regions import members
from mtmc.data.hardware import Hardware
from mtmc.env.policy import Decision
from mtmc.env.state import State
from mtmc.errors import IRError
from mtmc.ir.codec import structural_hash
from mtmc.ir.cost import kernel_cost, kernel_ms
from mtmc.ir.program import Kernel, Library, Program

THRESHOLD = 0.03
"""Expected relative gain below which a step is not worth its measurement."""

SCHEDULE = {tile.KIND: 0.4, pipeline.KIND: 0.2, reorder.KIND: 0.1}
"""How much of the distance to the roofline one try closes on average."""
FUSION = 1e-4
"""The same for a fusion: it is judged with what follows it, so it costs nothing, and small ones lead to large ones."""
DECAY = 0.6
"""What a further try of the same kind on the same region is worth, after one without gain."""
SPLIT_SHARE = 0.8
"""Part of the idle card's time that splitting a reduction gives back."""
TF32X3_RATE = 0.8
"""Speed of a generated float32 product by three TF32 products, against the library's float32."""
K_MAJOR = 0.01
"""Advantage of operands that lie along K, which the tensor cores take as they are."""


@dataclass(frozen=True)
class Choice:
    """A candidate with what it promises."""

    index: int
    phase: int
    """Earlier phases come first, whatever later ones promise."""
    gain: float
    """Expected share of the program's present time that it saves."""


class Heuristic:
    """Reads the state; deterministic."""

    name = "heuristic/1"
    reads_text = False

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self._savings: dict[tuple[object, ...], Saving] = {}
        """By action and the structure of its kernels: most of a program stays as it is from step to step."""

    def choose(self, observation: str, candidates: Sequence[str], state: State) -> Decision:
        choices = [Choice(i, *self._promise(state, action)) for i, action in enumerate(state.actions)]
        worth = [choice for choice in choices if choice.gain >= self._least(state.actions[choice.index])]
        if not worth:
            return Decision(next(i for i, action in enumerate(state.actions) if action.kind == stop.KIND))
        best = min(worth, key=lambda choice: (choice.phase, -choice.gain, choice.index))
        # A fusion or an encoding that the roofline wants is never the end: what follows it decides.
        return Decision(best.index, judge=state.actions[best.index].kind not in (fuse.KIND, encode.KIND))

    def _least(self, action: Action) -> float:
        return min(FUSION, self.threshold) if action.kind == fuse.KIND else self.threshold

    def _promise(self, state: State, action: Action) -> tuple[int, float]:
        """Phase and expected gain."""
        match action.kind:
            case fuse.KIND:
                return 0, self._roofline_gain(state, action) * _decay(state, action)
            case split.KIND:
                return 1, _split_gain(state, action) * _decay(state, action)
            case encode.KIND:
                gain = self._roofline_gain(state, action) * _decay(state, action)
                return 1, gain + (K_MAJOR if gain and action.get("layout") == "kmajor" else 0.0)
            case generate.KIND:
                return 2, 1.0
            case revert.KIND:
                return 3, _revert_gain(state, action)
            case tile.KIND | pipeline.KIND | reorder.KIND:
                return 4, _schedule_gain(state, action) * _decay(state, action)
        return 5, 0.0

    def _roofline_gain(self, state: State, action: Action) -> float:
        """Share of the present time that the roofline promises to save, on all kernels of the region."""
        kernels = [kernel for region in action.region for kernel in members(state.program, region)]
        firsts = [members(state.program, region)[0] for region in action.region]
        hashes = (structural_hash(kernel, state.program) for kernel in firsts)
        key = (action.kind, action.params, state.hardware.name, *hashes)
        if key not in self._savings:
            self._savings[key] = saving(state.program, action, state.hardware)
        return _share(state, kernels) * self._savings[key].ratio


def _share(state: State, kernels: Sequence[Kernel]) -> float:
    shares = state.shares
    return sum(shares.get(kernel.id, 0.0) for kernel in kernels)


@dataclass(frozen=True)
class Saving:
    """What an action does to the kernels that it replaces, by the roofline, both in milliseconds."""

    before: float
    after: float

    @property
    def ratio(self) -> float:
        """Share of their time that goes away, if they keep their distance to the roofline; may be negative."""
        return 1.0 - self.after / self.before if self.before else 0.0


def saving(program: Program, action: Action, hardware: Hardware) -> Saving:
    """By trying it, on one kernel or pair of a class; nothing for an action that fails."""
    try:
        child = catalog.apply(program, _one_of(program, action), hardware)
    except IRError:
        return Saving(0.0, 0.0)
    old = sum(expected_ms(program, kernel, hardware) for kernel in _changed(program, child))
    new = sum(expected_ms(child, kernel, hardware) for kernel in _changed(child, program))
    return Saving(old, new)


def expected_ms(program: Program, kernel: Kernel, hardware: Hardware) -> float:
    """The roofline, but three TF32 products at what they were measured to reach: less than the library's float32."""
    cost = kernel_cost(program, kernel)
    ms, bound = kernel_ms(program, kernel, hardware)
    if cost.kind != "tf32x3" or bound == "memory":
        return ms
    return max(ms, hardware.compute_ms(cost.flops) / TF32X3_RATE)


def _one_of(program: Program, action: Action) -> Action:
    """The action on the first kernel or pair of its classes."""
    classes = [members(program, region) for region in action.region]
    if len(classes) == 2:
        first = next(iter(fuse.pairs(program, classes[0], classes[1])), None)
        return replace(action, region=first) if first else action
    return replace(action, region=tuple(kernels[0].id for kernels in classes))


def _changed(program: Program, other: Program) -> list[Kernel]:
    """Kernels of ``program`` that ``other`` does not have as they are."""
    kept = {kernel.id: kernel for kernel in other.kernels}
    return [kernel for kernel in program.kernels if kept.get(kernel.id) != kernel]


def _split_gain(state: State, action: Action) -> float:
    """A grid of fewer programs than the card takes leaves the rest idle; more parts than that gain nothing."""
    kernels = members(state.program, action.region[0])
    best = split.advised(state.program, kernels[0], state.hardware)
    parts = action.number("parts")
    if best is None or parts > best:
        return 0.0
    return _share(state, kernels) * SPLIT_SHARE * (1.0 - 1.0 / parts)


def _revert_gain(state: State, action: Action) -> float:
    """Where this search measured the library on the same kernel, and it was faster."""
    kernels = members(state.program, action.region[0])
    total = sum(state.times_ms.values())
    saved = sum(
        state.times_ms.get(kernel.id, 0.0) - state.library_ms[kernel.id]
        for kernel in kernels
        if kernel.id in state.library_ms
    )
    return saved / total if total else 0.0


def _schedule_gain(state: State, action: Action) -> float:
    """A part of the distance to the roofline, for kernels that were measured."""
    if not state.measured:
        return 0.0
    kernels = members(state.program, action.region[0])
    if action.kind == tile.KIND and isinstance(kernels[0].impl, Library):
        # Alone only where it could not be generated with the others.
        return _share(state, kernels) * SCHEDULE[tile.KIND]
    shares = state.shares
    distance = 0.0
    for kernel in kernels:
        present = state.times_ms.get(kernel.id, 0.0)
        least = kernel_ms(state.program, kernel, state.hardware)[0]
        if present > least:
            distance += shares.get(kernel.id, 0.0) * (1.0 - least / present)
    return distance * SCHEDULE[action.kind]


def _decay(state: State, action: Action) -> float:
    """Falls with every try of this kind on this region that gave nothing."""
    lines = [attempt for attempt in state.history if attempt.change is None or attempt.change < 1.0 + THRESHOLD]
    tried = sum(_same_kind(attempt.action, action) for attempt in lines)
    return float(DECAY**tried)


def _same_kind(line: str, action: Action) -> bool:
    tried = catalog.parse(line)
    return tried.kind == action.kind and tried.region == action.region
