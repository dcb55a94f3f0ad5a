"""The text a policy reads: rendered from a State when somebody asks for it, and never stored as the state.

Sections in the order of a reader's questions: what card, where do we stand, which kernels, what was tried, what can be
done, and the source of the hottest regions in the space that is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtmc.data.hardware import Hardware
from mtmc.env.profile import quantised
from mtmc.env.state import Attempt, State
from mtmc.ir.codec import kernel_classes
from mtmc.ir.cost import kernel_ms
from mtmc.ir.printer import print_kernel
from mtmc.ir.program import Kernel, Source, Tile

TOKENS = 2048
"""Default size of an observation, whatever the program's size."""
CHARACTERS_PER_TOKEN = 4
HISTORY = 4
"""Last attempts that are shown."""
SMALLEST_SOURCE = 200
"""Characters below which a cut source says nothing."""
MESSAGE = 120
"""Characters of a rejected attempt's reason."""


def render(state: State, candidates: Sequence[str] = (), tokens: int = TOKENS) -> str:
    """At most ``tokens`` tokens, by the usual estimate of four characters a token."""
    room = tokens * CHARACTERS_PER_TOKEN
    parts = [_fit([_hardware(state.hardware), *_status(state)], room // 8, "facts")]
    if state.history:
        tried = [_attempt(a) for a in reversed(state.history[-HISTORY:])]
        parts.append(_fit(["last steps, the newest first:", *tried], room // 8, "steps"))
    classes = ["kernels:", *_classes(state)]
    numbered = [f"{number} {line}" for number, line in enumerate(candidates)]
    choices = _fit(["candidates:", *numbered], room * 2 // 5, "candidates") if numbered else ""
    parts.append(_fit(classes, room // 5, "classes"))
    left = room - sum(len(part) + 2 for part in (*parts, choices))
    parts += _hottest(state, left)
    if choices:
        parts.append(choices)
    return "\n\n".join(parts)


def _fit(lines: list[str], room: int, what: str) -> str:
    """As many lines as ``room`` characters hold; the last one says how many are left out."""
    text = "\n".join(lines)
    if len(text) <= room:
        return text
    reserve = len(f"... {len(lines)} more {what}") + 1
    kept: list[str] = []
    used = 0
    for line in lines:
        if used + len(line) + 1 > room - reserve:
            break
        kept.append(line)
        used += len(line) + 1
    return "\n".join([*kept, f"... {len(lines) - len(kept)} more {what}"])


def _hardware(gpu: Hardware) -> str:
    rates = ", ".join(
        f"{name} {quantised(value / 1e12)}"
        for name, value in (("fp32", gpu.fp32_flops), ("fp16", gpu.fp16_flops), ("tf32", gpu.tf32_flops))
    )
    memory = f"{quantised(gpu.bandwidth_Bps / 1e12)} TB/s, L2 {gpu.l2_bytes >> 20} MiB"
    return f"{gpu.name} {gpu.target}, {gpu.sms} SMs, {memory}, TFLOP/s: {rates}"


def _status(state: State) -> list[str]:
    left = f"{state.steps_left} steps" + (
        f", {quantised(state.seconds_left)} s" if state.seconds_left is not None else ""
    )
    lines = [f"step {state.step}, left: {left}"]
    kind = "measured" if state.measured else "estimated"
    times = (("now", state.ms), ("best", state.best_ms), ("eager", state.eager_ms))
    known = [f"{name} {quantised(ms)} ms" for name, ms in times if ms is not None]
    if known:
        lines.append(f"{', '.join(known)} ({kind})")
    return lines


def _attempt(attempt: Attempt) -> str:
    change = f", {quantised(attempt.change)}x" if attempt.change is not None else ""
    reason = f": {attempt.message[:MESSAGE]}" if attempt.message else ""
    return f"{attempt.action}: {attempt.outcome}{change}{reason}"


def _classes(state: State) -> list[str]:
    """One line for each class of structurally equal kernels, the hottest class first."""
    shares = state.shares
    groups = kernel_classes(state.program).values()
    heat = {group: sum(shares.get(name, 0.0) for name in group) for group in groups}
    ordered = sorted(groups, key=lambda group: -heat[group])
    return [_class_line(state, [state.program.kernel(name) for name in group], heat[group]) for group in ordered]


def _class_line(state: State, group: list[Kernel], share: float) -> str:
    first = group[0]
    count = f" and {len(group) - 1} like it" if len(group) > 1 else ""
    ms = state.times_ms.get(first.id)
    time = f", {quantised(ms)} ms" if ms is not None else ""
    _, limit = kernel_ms(state.program, first, state.hardware)
    part = f"{quantised(100 * share)}%{time}, {limit}-bound"
    return f"{first.id} ({first.note}){count}: {part}, {implementation(first)}"


def implementation(kernel: Kernel) -> str:
    """How the kernel runs, in a few words: the head of its printed text."""
    match kernel.impl:
        case Tile(schedule):
            sizes = "x".join(map(str, schedule.tile))
            return f"tile {schedule.form} {sizes}, {schedule.warps} warps, {schedule.stages} stages"
        case Source():
            return "source"
    return "library"


def _hottest(state: State, room: int) -> list[str]:
    """Printed text and source of the hottest regions, one for each class, while there is room."""
    parts: list[str] = []
    shares = state.shares
    firsts = [group[0] for group in kernel_classes(state.program).values()]
    for name in sorted(firsts, key=lambda name: -shares.get(name, 0.0)):
        printed = print_kernel(state.program, state.program.kernel(name))
        text = "\n".join(filter(None, [printed, state.sources.get(name, "")]))
        if len(text) + 2 > room:
            if not parts and room > SMALLEST_SOURCE:
                parts.append(_fit(text.splitlines(), room - 2, "lines"))
            break
        parts.append(text)
        room -= len(text) + 2
    return parts
