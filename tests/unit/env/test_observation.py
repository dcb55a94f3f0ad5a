from __future__ import annotations

from dataclasses import replace

import pytest

from mtmc.data.hardware import H200
from mtmc.env.observation import CHARACTERS_PER_TOKEN, TOKENS, render
from mtmc.env.profile import estimated_times, quantised
from mtmc.env.state import Attempt, State

LIMIT = TOKENS * CHARACTERS_PER_TOKEN


def state_of(program, **changes) -> State:
    times = estimated_times(program, H200)
    return replace(State(program, H200, steps_left=5, times_ms=times, ms=sum(times.values())), **changes)


def test_says_what_a_decision_needs(chain) -> None:
    history = (Attempt("tile k0 (exp, line 10) to 64", "wrong_result", None, "norm 0.3, allowed 1e-6"),)
    state = state_of(chain(2), history=history, sources={"k0": "y = torch.exp(x)"}, eager_ms=0.5)
    text = render(state, ["fuse k0 (exp, line 10) and k1 (exp, line 11)", "stop"])
    for part in (
        "NVIDIA H200 sm_90",
        "left: 5 steps",
        "eager 0.5 ms",
        "100%",
        "library",
        "wrong_result: norm 0.3",
        "0 fuse k0",
        "1 stop",
        "y = torch.exp(x)",
    ):
        assert part in text, part


@pytest.mark.parametrize("depth", [1, 40, 400])
def test_fits_its_budget_whatever_the_size(chain, depth: int) -> None:
    program = chain(depth)
    # Unequal kernels, so that they are as many classes.
    lines = [f"tile k{n} (exp, line {n}) to {n}" + " with many words" * 5 for n in range(depth)]
    history = tuple(Attempt(lines[0], "run_error", None, "x" * 5000) for _ in range(9))
    sources = {kernel.id: "source line\n" * 300 for kernel in program.kernels}
    text = render(state_of(program, history=history, sources=sources), lines)
    assert len(text) <= LIMIT
    assert "source line" in text
    tight = render(state_of(program, history=history, sources=sources), lines, tokens=300)
    assert len(tight) <= 300 * CHARACTERS_PER_TOKEN


def test_equal_kernels_are_one_line(chain) -> None:
    text = render(state_of(chain(12)))
    assert "k0 (exp, line 10) and 11 like it" in text
    assert "k1 (" not in text.split("kernels:")[1].split("\n\n")[0]


def test_what_is_left_out_is_counted(chain) -> None:
    lines = [f"tile k0 (exp, line 10) to {n}, and so on and so on and so on" for n in range(200)]
    text = render(state_of(chain(1)), lines)
    shown = sum(line.split(" ", 1)[-1] in lines for line in text.splitlines())
    assert 0 < shown < 200
    assert f"... {200 - shown} more candidates" in text


def test_the_text_does_not_change_with_the_noise_of_a_timing(chain) -> None:
    program = chain(2)
    one = state_of(program, times_ms={"k0": 1.0012, "k1": 0.5})
    two = state_of(program, times_ms={"k0": 1.0031, "k1": 0.5})
    ten = state_of(program, times_ms={"k0": 10.0, "k1": 0.5})
    assert render(one) == render(two) != render(ten)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.012345, "0.012"), (1.0, "1"), (99.6, "100"), (123456.0, "120000"), (2.5e-7, "0.00000025")],
)
def test_two_significant_digits(value: float, text: str) -> None:
    assert quantised(value) == text
