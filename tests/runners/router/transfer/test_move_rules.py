"""Whose turn it is at a target: first come first served, whichever transfer leaves the queue and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from results.records.router_spec import InstanceSpec, KvEndpoint, TransferRules
from runners.router.transfer.move_rules import Admission, MoveRules

SPECS = {name: InstanceSpec(name, f"http://{name}", transfer=KvEndpoint("nixl")) for name in ("h", "t", "u")}


def make_rules(queue: int = 1) -> MoveRules:
    return MoveRules(SPECS, TransferRules(queue=queue), lambda: 0.0)


@given(st.lists(st.integers(0, 5), max_size=30), st.booleans())
def test_one_at_a_time_and_in_the_order_in_which_they_came(leaves: list[int], removed: bool) -> None:
    rules = make_rules()
    order: list[Admission] = []
    waiting = [rules.admit_transfer("h", "t", "migration") for _ in range(6)]
    for admission in waiting:
        rules.take_turn(admission, lambda one=admission: order.append(one))  # type: ignore[misc]
    if removed:
        rules.remove_instance("t")
    expected = list(waiting)
    for index in leaves:
        if index < len(expected):
            rules.end_turn(expected.pop(index))
            assert not expected or order[-1] is expected[0]
    assert order == [one for one in waiting if one in order]
    for admission in expected:
        rules.end_turn(admission)


def test_turns_at_different_targets_do_not_wait_for_each_other() -> None:
    rules, ready = make_rules(), list[str]()
    for target in ("t", "u", "t"):
        rules.take_turn(rules.admit_transfer("h", target, "migration"), lambda name=target: ready.append(name))  # type: ignore[misc]
    assert ready == ["t", "u"]


def test_a_target_with_a_full_queue_is_cut_off_until_a_migration_finishes() -> None:
    rules = make_rules(queue=1)
    first, _ = (rules.admit_transfer("h", "t", "migration") for _ in range(2))
    rules.admit_transfer("h", "u", "handover")
    assert rules.cut_off("h", ("t", "u")) == {"t": "2 sessions are on their way there"}
    rules.finish_transfer(first)
    rules.finish_transfer(first)
    assert rules.cut_off("h", ("t", "u")) == {}
