"""The numeric contract on tensors small enough to reason about."""

from __future__ import annotations

import math

import pytest
import torch

from mtmc.data.evaluation import Outcome
from mtmc.verify import compare
from mtmc.verify.chunks import pieces
from mtmc.verify.verdicts import Errors

EPS = torch.finfo(torch.float32).eps


def verdict(y: torch.Tensor, oracle: torch.Tensor, reference: torch.Tensor, name: str = "out0") -> Outcome | None:
    errors = Errors()
    errors.add("seed0", name, compare.compare(y, oracle, reference).to_json())
    rejected = errors.rejection()
    return rejected.outcome if rejected else None


@pytest.fixture
def oracle() -> torch.Tensor:
    return torch.randn(50, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_norm_and_worst_are_what_they_say(oracle: torch.Tensor) -> None:
    y = oracle.float()
    y[3, 4] += 1.0
    result = compare.compare(y, oracle, oracle.float())
    difference = y.double() - oracle
    assert result.candidate.norm == pytest.approx(float(difference.norm() / oracle.norm()))
    assert result.candidate.worst == pytest.approx(float(difference.abs().max() / oracle.square().mean().sqrt()))
    assert result.where == (3, 4) and result.got == pytest.approx(float(y[3, 4]))


def test_the_reference_itself_and_twice_its_error_pass_but_not_more(oracle: torch.Tensor) -> None:
    noise = 1e-3 * torch.randn_like(oracle)
    reference = (oracle + noise).float()
    assert verdict(reference, oracle, reference) is None
    assert verdict((oracle + 1.9 * noise).float(), oracle, reference) is None
    assert verdict((oracle + 2.1 * noise).float(), oracle, reference) is Outcome.WRONG_RESULT


def test_four_units_in_the_last_place_pass_where_the_reference_is_exact(oracle: torch.Tensor) -> None:
    exact = oracle.float().double()
    top = exact.abs().max()
    for ulps, outcome in ((3, None), (5, Outcome.WRONG_RESULT)):
        y = exact.float()
        y[0, 0] += float(ulps * EPS * top)
        assert verdict(y, exact, exact.float()) is outcome
    assert verdict((exact * (1 + 6 * EPS)).float(), exact, exact.float()) is Outcome.WRONG_RESULT


def test_one_wrong_element_in_a_million_is_found_by_the_worst_element() -> None:
    oracle = torch.rand(1 << 20, dtype=torch.float64)
    y = oracle.float()
    y[12345] += 1e-5
    result = compare.compare(y, oracle, oracle.float())
    assert result.candidate.norm < 4 * EPS and verdict(y, oracle, oracle.float()) is Outcome.WRONG_RESULT


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_rounding_to_a_lower_dtype_is_rejected(oracle: torch.Tensor, low: torch.dtype) -> None:
    assert verdict(oracle.to(low).float(), oracle, oracle.float()) is Outcome.WRONG_RESULT


def test_zeros_do_not_pass_for_small_outputs() -> None:
    oracle = torch.softmax(torch.randn(4, 4096, dtype=torch.float64), 1)
    assert verdict(torch.zeros(4, 4096), oracle, oracle.float()) is Outcome.WRONG_RESULT


def test_infinities_and_nan_must_sit_where_oracle_and_reference_have_them(oracle: torch.Tensor) -> None:
    oracle[0, :3] = torch.tensor([math.inf, -math.inf, math.nan])
    reference = oracle.float()
    assert verdict(reference.clone(), oracle, reference) is None
    for index, value in (((0, 0), -math.inf), ((0, 2), 0.0), ((1, 1), math.nan), ((0, 1), 1e30)):
        y = reference.clone()
        y[index] = value
        assert verdict(y, oracle, reference) is Outcome.WRONG_RESULT, (index, value)


def test_where_only_the_reference_overflows_nobody_is_bound(oracle: torch.Tensor) -> None:
    reference = oracle.float()
    reference[2, 2] = math.inf
    for value in (math.inf, 7.0):
        y = oracle.float()
        y[2, 2] = value
        assert verdict(y, oracle, reference) is None


def test_integers_must_be_equal() -> None:
    reference = torch.arange(100)
    assert verdict(reference.clone(), reference, reference) is None
    y = reference.clone()
    y[42] = 0
    result = compare.compare(y, reference, reference)
    assert result.where == (42,) and verdict(y, reference, reference) is Outcome.WRONG_RESULT


def test_indices_are_compared_by_what_they_point_at() -> None:
    values = torch.tensor([[1.0, 5.0, 5.0, 0.0], [2.0, 2.0, 1.0, 2.0]])
    reference = values.argmax(1)
    assert compare.pointed_dim(reference, values) == 1
    errors = Errors()
    errors.add("seed0", "out0", compare.compare_pointed(torch.tensor([2, 3]), reference, values, 1).to_json())
    assert errors.rejection() is None
    for wrong in (torch.tensor([2, 2]), torch.tensor([9, 0]), torch.tensor([-1, 0])):
        errors = Errors()
        errors.add("seed0", "out0", compare.compare_pointed(wrong, reference, values, 1).to_json())
        assert errors.rejection() is not None, wrong


def test_indices_that_are_no_argmax_are_not_taken_for_one() -> None:
    values = torch.tensor([[1.0, 5.0, 3.0], [2.0, 9.0, 1.0]])
    assert compare.pointed_dim(torch.tensor([2, 2]), values) is None


def test_a_scalar_lucky_once_does_not_set_the_limit() -> None:
    errors = Errors()
    oracle = torch.tensor(1.0, dtype=torch.float64)
    for name, reference_error, own in (("seed0", 0.0, 8e-7), ("seed1", 1e-6, 1e-6)):
        y, reference = (oracle + own).float(), (oracle + reference_error).float()
        errors.add(name, "out0", compare.compare(y, oracle, reference).to_json())
    assert errors.rejection() is None
    errors = Errors()
    errors.add("seed0", "out0", compare.compare((oracle + 8e-7).float(), oracle, oracle.float()).to_json())
    assert errors.rejection() is not None


def test_state_outside_the_contract_is_wrong_state(oracle: torch.Tensor) -> None:
    assert verdict(oracle.float() + 1, oracle, oracle.float(), "state:bn.running_mean") is Outcome.WRONG_STATE


def test_lower_precision_is_named_in_the_message(oracle: torch.Tensor) -> None:
    errors = Errors()
    errors.add("wide", "out0", compare.compare(oracle.half().float(), oracle, oracle.float()).to_json())
    rejected = errors.rejection()
    assert rejected and "input set wide" in rejected.message and "fp16" in rejected.message


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (3, 4, 5), (1, 100), (0, 4)])
@pytest.mark.parametrize("limit", [1, 6, 1000])
def test_pieces_cover_once(shape: tuple[int, ...], limit: int) -> None:
    counts = torch.zeros(shape)
    for piece in pieces(shape, limit):
        counts[piece] += 1
        assert counts[piece].numel() <= max(limit, 1)
    assert bool((counts == 1).all())


def test_chunks_do_not_change_the_numbers(oracle: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    y = oracle.float() * (1 + 1e-4)
    y[31, 17] += 1
    whole = compare.compare(y, oracle, oracle.float())
    monkeypatch.setattr(compare, "pieces", lambda shape: pieces(shape, 7))
    parts = compare.compare(y, oracle, oracle.float())
    assert parts.candidate.norm == pytest.approx(whole.candidate.norm)
    assert parts.candidate.worst == pytest.approx(whole.candidate.worst)
    assert parts.where == whole.where == (31, 17)


def test_strided_results_are_compared_in_place(oracle: torch.Tensor) -> None:
    assert verdict(oracle.float().t().contiguous().t(), oracle, oracle.float()) is None
    assert verdict(oracle.float().flip(0), oracle, oracle.float()) is Outcome.WRONG_RESULT
