from __future__ import annotations

from mtmc.data.candidate import Candidate
from mtmc.data.evaluation import Evaluation, Outcome
from mtmc.search.greedy import Greedy
from mtmc.search.node import Node
from tests.unit.search.search_fakes import accepted, make_chain, rejected

PROGRAM = make_chain()


def node(evaluation: Evaluation, library: tuple[str, ...] = ()) -> Node:
    return Node(PROGRAM, Candidate(source=f"x = {id(evaluation)}", library_kernels=library), evaluation)


def at(ms: float) -> Node:
    return node(accepted(ms))


def test_a_faster_step_is_current_and_best() -> None:
    greedy = Greedy(at(4.0))
    faster = at(3.0)
    assert greedy.take(faster) == (True, True)
    assert greedy.current is greedy.best is faster


def test_a_losing_step_may_lead_to_a_gain() -> None:
    start, slower, fastest = at(4.0), at(6.0), at(1.0)
    greedy = Greedy(start, patience=2)
    assert greedy.take(slower) == (True, False)
    assert greedy.current is slower and greedy.best is start
    assert greedy.take(fastest) == (True, True)


def test_goes_back_to_the_best_when_patience_ends() -> None:
    start = at(4.0)
    greedy = Greedy(start, patience=2)
    assert [greedy.take(at(5.0)).current for _ in range(3)] == [True, True, False]
    assert greedy.current is start
    assert greedy.take(at(5.0)).current, "patience starts again at the best"


def test_without_patience_only_improvements_are_accepted() -> None:
    start = at(4.0)
    greedy = Greedy(start, patience=0)
    assert greedy.take(at(5.0)) == (False, False)
    assert greedy.current is start


def test_a_rejected_step_moves_nothing() -> None:
    start = at(4.0)
    greedy = Greedy(start, patience=1)
    for _ in range(5):
        assert greedy.take(node(rejected())) == (False, False)
    assert greedy.current is start
    assert greedy.take(at(9.0)).current, "rejections cost no patience"


def test_noise_makes_no_new_best() -> None:
    greedy = Greedy(at(4.0), margin=0.01)
    assert greedy.take(at(3.99)) == (True, False)
    assert greedy.take(at(3.9)) == (True, True)


def test_a_rejected_start_is_replaced_by_anything_right() -> None:
    greedy = Greedy(node(rejected()))
    assert greedy.take(at(100.0)) == (True, True)


def test_only_eligible_nodes_become_best() -> None:
    start = node(accepted(4.0), library=("k0",))
    greedy = Greedy(start, eligible=lambda n: n.pure)
    assert greedy.take(node(accepted(1.0), library=("k0",))) == (True, False)
    slow_and_pure = at(9.0)
    assert greedy.take(slow_and_pure) == (True, True), "the first that may be the result"
    assert greedy.best is slow_and_pure


def test_equal_estimates_prefer_less_library() -> None:
    def estimated(library: tuple[str, ...]) -> Node:
        return node(Evaluation(outcome=Outcome.ACCEPTED, estimate_ms=2.0), library)

    greedy = Greedy(estimated(("k0", "k1")))
    assert greedy.take(estimated(("k0",))) == (True, True)
    assert greedy.take(estimated(("k0",))) == (True, False)
