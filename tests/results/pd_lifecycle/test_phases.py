"""Whatever the stamps: no duration is negative, what is not known says why, and all phases together are E2E."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.pd_lifecycle.phases import BREAKDOWN, MORE, Breakdown, break_down
from results.records.lifecycle import HANDSHAKE_PARTS, PHASES, Clock, ClockSide, Colo, MoreStamps, Stamps

ONE_HOST = Clock("a", "a", "a", 0, 0)
STAMPS = tuple(Stamps.__dataclass_fields__)
MORE_STAMPS = tuple(MoreStamps.__dataclass_fields__)
DIFFERENCES = {"ttft_overhead_vs_colo", "pdsep_overhead", "pdsep_e2e_overhead"}
"""May be below zero."""

moments = st.integers(0, 10**13)
steps_ns = st.integers(0, 10**9)
chains = st.lists(steps_ns, min_size=11, max_size=11).map(lambda found: list(accumulate(found)))


def _broken(stamps: Stamps, more: MoreStamps, clock: Clock = ONE_HOST, half_step_ms: float | None = None) -> Breakdown:
    return break_down(stamps, more, clock, Colo(5.0, 9.0), missing={}, half_step_ms=half_step_ms)


def _in_order(at: list[int], metadata_ns: int | None) -> Stamps:
    """Stamps that follow one another; t4 anywhere before t5, as with concurrent requests."""
    return replace(Stamps(*at), t4_zmq_metadata=None if metadata_ns is None else min(metadata_ns, at[5]))


@settings(deadline=None)
@given(chains, st.one_of(st.none(), moments))
def test_phases_in_order_add_up_to_e2e(at: list[int], metadata_ns: int | None) -> None:
    stamps = _in_order(at, metadata_ns)
    durations = _broken(stamps, MoreStamps(client_send=0))
    values = {**durations.breakdown_ms, **durations.more_ms}
    parts = [values[name] for name in PHASES]
    assert None not in parts
    e2e = durations.breakdown_ms["e2e"]
    assert sum(part or 0.0 for part in parts) == pytest.approx(e2e, rel=1e-9, abs=1e-9)
    if e2e:
        assert durations.residual_share == pytest.approx(0.0, abs=1e-9)
    wait, rest = (values[name] for name in HANDSHAKE_PARTS)
    assert (wait is None) == (rest is None) == (metadata_ns is None)
    if metadata_ns is not None:
        assert (wait or 0.0) + (rest or 0.0) == pytest.approx(values["zmq_handshake"], rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), moments), min_size=11, max_size=11),
    st.lists(st.one_of(st.none(), moments), min_size=len(MORE_STAMPS), max_size=len(MORE_STAMPS)),
    st.one_of(st.none(), st.floats(0, 50)),
)
def test_nothing_is_negative_or_made_up(
    at: list[int | None], more: list[int | None], half_step_ms: float | None
) -> None:
    stamps = Stamps(*at)
    durations = _broken(stamps, MoreStamps(*more), half_step_ms=half_step_ms)
    values = {**durations.breakdown_ms, **durations.more_ms}
    assert tuple(durations.breakdown_ms) == BREAKDOWN
    assert tuple(durations.more_ms) == MORE
    for name, value in values.items():
        assert (value is None) == (name in durations.gaps)
        assert value is None or name in DIFFERENCES or value >= 0
        assert name not in durations.gaps or durations.gaps[name]
    whole = all(values[name] is not None for name in PHASES)
    if durations.residual_share is not None:
        assert whole
        assert half_step_ms is not None or durations.residual_share == pytest.approx(0.0, abs=1e-6)


@settings(deadline=None)
@given(chains, st.integers(-(10**15), 10**15), st.integers(0, 10**6), st.sampled_from(["prefill", "decode"]))
def test_two_hosts_give_the_same_phases_once_their_clocks_are_aligned(
    at: list[int], offset_ns: int, error_ns: int, side: ClockSide
) -> None:
    stamps = Stamps(*at)
    there = {name: getattr(stamps, name) for name in STAMPS}
    on_prefill = ["t2_p_schedule", "t3_p_prefill_done", "t4_zmq_metadata"]
    on_prefill += ["t5_rdma_start", "t6_rdma_complete"] if side == "prefill" else []
    skewed = Stamps(**(there | {name: there[name] + offset_ns for name in on_prefill}))
    clock = Clock("a", "b", "a", offset_ns, error_ns)
    plain = _broken(stamps, MoreStamps(client_send=0))
    durations = break_down(skewed, MoreStamps(client_send=0), clock, Colo(5.0, 9.0), missing={}, write_side=side)
    assert durations.breakdown_ms == plain.breakdown_ms
    crossing = {"p_queue", "transfer_total"} | ({"transfer_signal"} if side == "prefill" else {"zmq_handshake"})
    if error_ns and side == "prefill":
        assert set(durations.error_ms) >= crossing
        assert {durations.error_ms[name] for name in crossing} == {error_ns / 1e6}
    assert not {"routing", "p_prefill", "d_promotion", "d_decode", "e2e"} & set(durations.error_ms)


def test_what_lies_between_two_hosts_is_not_known_without_an_offset() -> None:
    stamps = Stamps(*range(0, 11_000_000, 1_000_000))
    durations = _broken(stamps, MoreStamps(client_send=0), Clock("a", "b", "a", reason="a clock was set"))
    assert durations.gaps["p_queue"] == durations.gaps["transfer_signal"] == "a clock was set"
    assert durations.breakdown_ms["p_prefill"] == 1.0
    assert durations.breakdown_ms["e2e"] == 10.0
    third = _broken(stamps, MoreStamps(), Clock("c", "b", "a", 0, 10))
    assert "two hosts (router, prefill)" in third.gaps["p_queue"]
    assert third.breakdown_ms["transfer_signal"] == 1.0
    blind = _broken(stamps, MoreStamps(), Clock())
    assert blind.breakdown_ms["transfer_signal"] is None, "hosts without a boot id may be two"


def test_a_duration_within_the_clocks_error_of_zero_is_bounded_by_zero() -> None:
    stamps = Stamps(t6_rdma_complete=1_000_000, t7_d_recv_signal=900_000)
    durations = _broken(stamps, MoreStamps(), Clock("a", "b", "a", 0, 300_000))
    assert durations.breakdown_ms["transfer_signal"] == pytest.approx(0.1), "between 0 and 0.2"
    assert durations.error_ms["transfer_signal"] == pytest.approx(0.1)
    beyond = _broken(stamps, MoreStamps(), Clock("a", "b", "a", 0, 50_000))
    assert beyond.breakdown_ms["transfer_signal"] is None
