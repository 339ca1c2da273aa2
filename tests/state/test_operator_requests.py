from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from state.errors import RequestRefused
from state.lease import acquire
from state.operator_requests import ACTIONS, answer, pending, submit
from state.store import RunStore
from tests.state.plans import CELLS


@pytest.fixture
def served(store: RunStore) -> Iterator[RunStore]:
    with acquire(store):
        yield store


def test_requests_wait_in_order_until_answered(served: RunStore) -> None:
    first = submit(served, "pause", by="ann")
    second = submit(served, "skip", f"cell:{CELLS[0].cell}", "broken")
    assert [request.request for request in pending(served)] == [first, second]
    assert answer(served, first, True, "after this cell")
    (left,) = pending(served)
    assert (left.request, left.action, left.target, left.reason) == (
        second, "skip", f"cell:{CELLS[0].cell}", "broken"
    )  # fmt: skip
    view = served.view()
    assert [request.request for request in view.open_requests] == [second]
    assert view.requests[first].detail == "after this cell"
    assert served.find_problems() == ()


def test_the_first_answer_stands(served: RunStore) -> None:
    number = submit(served, "pause")
    assert answer(served, number, True, "yes")
    assert not answer(served, number, False, "no")
    assert (served.view().requests[number].accepted, served.view().requests[number].detail) == (True, "yes")


def test_an_operator_in_another_process_is_heard(tmp_path: Path, served: RunStore) -> None:
    with RunStore.open(tmp_path / "run") as operator:
        number = submit(operator, "stop")
        assert [request.request for request in pending(served)] == [number]
        answer(served, number, True)
        assert pending(operator) == ()


def test_without_a_run_process_a_request_is_refused_with_the_remedy(store: RunStore) -> None:
    with pytest.raises(RequestRefused, match="no process runs") as refused:
        submit(store, "pause")
    assert f"tracon resume {store.run}" in refused.value.remedy
    assert refused.value.exit_code == 2
    assert pending(store) == ()


@pytest.mark.parametrize(
    ("action", "target", "hint"),
    [
        ("explode", "", "pause"),
        ("skip", "", "cell:ID"),
        ("skip", "plain", "cell:ID"),
        ("skip", "config:plan", "plain"),
        ("skip", "stage:phase-b", "phase-a"),
        ("retry", "cell:phase-a/plain/r3", "phase-a/plain/r"),
        ("pause", "config:plain", "pause"),
    ],
)
def test_a_request_that_means_nothing_is_refused_with_what_could_be_meant(
    served: RunStore, action: str, target: str, hint: str
) -> None:
    with pytest.raises(RequestRefused) as refused:
        submit(served, action, target)
    assert hint in refused.value.remedy
    assert pending(served) == ()


def test_every_action_can_be_asked_for(served: RunStore) -> None:
    for action in ACTIONS:
        submit(served, action, "config:plain" if action in ("skip", "retry") else "")
    assert [request.action for request in pending(served)] == list(ACTIONS)


def test_an_answer_to_nothing_is_refused(served: RunStore) -> None:
    with pytest.raises(RequestRefused, match="no request 9"):
        answer(served, 9, True)
