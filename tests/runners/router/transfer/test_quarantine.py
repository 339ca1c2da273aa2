"""A pair whose transfers fail is left alone for a while, and tried again: never on one strike, never for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from results.records.router_spec import TransferRules
from runners.router.transfer.quarantine import Quarantine

RULES = TransferRules(failures_to_quarantine=3, window_s=60.0, quarantine_s=10.0, quarantine_max_s=40.0)


def failed(at_s: list[float], rules: TransferRules = RULES) -> Quarantine:
    pair = Quarantine(rules)
    for now_s in at_s:
        pair = pair.begin_transfer().note_failure(now_s, "no answer", probe=False)
    return pair


def test_failures_in_a_window_are_needed() -> None:
    assert failed([0.0, 1.0]).explain_refusal(1.0) == ""
    assert failed([0.0, 1.0, 62.0]).explain_refusal(62.0) == "", "the first is out of the window"
    assert failed([0.0, 1.0, 2.0]).explain_refusal(2.0) == "quarantined for 10.0 s more (no answer)"


def test_one_probe_is_let_through_and_its_success_ends_the_quarantine() -> None:
    pair = failed([0.0, 0.0, 0.0])
    assert pair.explain_refusal(9.9)
    assert pair.explain_refusal(10.0) == ""
    probing = pair.begin_transfer()
    assert "probe" in probing.explain_refusal(10.0)
    assert probing.note_success(probe=True) == Quarantine(RULES)


def test_a_failed_probe_doubles_the_time_up_to_its_limit() -> None:
    pair, now_s, held = failed([0.0, 0.0, 0.0]), 0.0, []
    for _ in range(5):
        held.append(pair.until_s - now_s)
        now_s = pair.until_s
        pair = pair.begin_transfer().note_failure(now_s, "again", probe=True)
    assert held == [10.0, 20.0, 40.0, 40.0, 40.0]


def test_what_began_before_the_quarantine_says_nothing_in_it() -> None:
    pair = failed([0.0, 0.0, 0.0])
    late = pair.note_failure(5.0, "late", probe=False)
    assert pair.note_success(probe=False) == pair.release_probe(probe=False) == late == pair


def test_another_process_may_be_probed_at_once() -> None:
    pair = failed([0.0, 0.0, 0.0]).allow_probe(3.0)
    assert pair.explain_refusal(3.0) == ""
    assert pair.begin_transfer().note_failure(3.0, "still", probe=True).until_s == 23.0, (
        "but not as if nothing had been"
    )
    assert failed([0.0, 0.0]).allow_probe(1.0) == Quarantine(RULES)


def test_a_probe_of_a_quarantine_that_is_forgotten_is_one_failure_among_others() -> None:
    assert Quarantine(RULES).note_failure(0.0, "late", probe=True).explain_refusal(0.0) == ""


steps = st.lists(
    st.tuples(st.sampled_from(["succeeded", "failed", "let_go", "released", "wait"]), st.floats(0.0, 30.0))
)


@given(steps, st.integers(1, 4))
def test_no_pair_is_lost_or_probed_twice_whatever_happens(events: list[tuple[str, float]], limit: int) -> None:
    rules = TransferRules(failures_to_quarantine=limit, window_s=20.0, quarantine_s=5.0, quarantine_max_s=18.0)
    pair, now_s, in_a_row = Quarantine(rules), 0.0, 0
    for event, pause_s in events:
        now_s += pause_s
        if event == "released":
            pair = pair.allow_probe(now_s)
        elif event != "wait" and not pair.explain_refusal(now_s):
            probe = bool(pair.times)
            pair = pair.begin_transfer()
            assert bool(pair.explain_refusal(now_s)) == probe, (
                "beside a probe nothing goes, beside another everything does"
            )
            in_a_row = in_a_row + 1 if event == "failed" else 0 if event == "succeeded" else in_a_row
            if event == "failed":
                pair = pair.note_failure(now_s, "why", probe=probe)
            elif event == "succeeded":
                pair = pair.note_success(probe=probe)
                assert pair == Quarantine(rules)
            else:
                pair = pair.release_probe(probe=probe)
        if pair.explain_refusal(now_s):
            assert in_a_row >= limit, "never on fewer failures"
        assert pair.explain_refusal(now_s + rules.quarantine_max_s) == "", "never for ever"
