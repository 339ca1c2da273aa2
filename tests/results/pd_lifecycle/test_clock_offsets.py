"""Two hosts' clocks: the offset lies within its error, drift is followed, and a clock that is set is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.pd_lifecycle.clock_offsets import (
    MAX_RATE,
    Offset,
    StampedExchange,
    align_clocks,
    estimate_clock,
    estimate_offsets,
)
from results.records.lifecycle import RequestConfig
from tests.results.pd_lifecycle.synthetic import T0_NS, Truth, seen

FAR = 86_400 * 10**9
"""The prefill host has been up a day longer."""


def _exchanges(
    offset: Callable[[float], float], seconds: Sequence[float], *, delay_us: float = 300.0, seed: int = 0
) -> list[StampedExchange]:
    """`offset`: nanoseconds at a time in seconds. Each way takes an exponential time of this mean, never the same."""
    rng = np.random.default_rng(seed)
    actual = []
    for at in seconds:
        there, hold, back = rng.exponential(delay_us * 1e3), 4e6, rng.exponential(delay_us * 1e3)
        asked = T0_NS + round(at * 1e9)
        shift = FAR + round(offset(at))
        heard, answered = asked + round(there) + shift, asked + round(there + hold) + shift
        actual.append(StampedExchange(asked, heard, answered, asked + round(there + hold + back)))
    return actual


def _covers(one: Offset, truth_ns: float, rounding_ns: float = 0) -> bool:
    """Whether the offset is within its error of the truth."""
    assert one.offset_ns is not None
    assert one.error_ns is not None
    return abs(one.offset_ns - truth_ns) <= one.error_ns + rounding_ns


def test_the_offset_is_within_its_error_and_that_is_better_than_one_exchange() -> None:
    exchanges = _exchanges(lambda _: 0.0, range(100))
    offsets, steps = estimate_offsets(exchanges)
    assert steps == ()
    single = [estimate_clock("a", "b", "a", one).error_ns or 0 for one in exchanges]
    assert all(_covers(one, FAR) for one in offsets)
    assert max(one.error_ns or 0 for one in offsets) < np.median(single) / 3


@settings(deadline=None)
@given(st.floats(-0.9 * MAX_RATE, 0.9 * MAX_RATE), st.integers(0, 1000), st.integers(2, 40))
def test_a_clock_that_runs_faster_is_followed(rate: float, seed: int, count: int) -> None:
    exchanges = _exchanges(lambda at: 1e9 * rate * at, range(count), seed=seed)
    offsets, steps = estimate_offsets(exchanges)
    assert steps == ()
    assert all(_covers(one, FAR + 1e9 * rate * place, rounding_ns=1) for place, one in enumerate(offsets))


@pytest.mark.parametrize("by_ms", [-20.0, 8.0, 3_600_000.0])
@pytest.mark.parametrize("at", [1, 17, 39])
def test_a_clock_that_is_set_is_found_where_it_was_set(by_ms: float, at: int) -> None:
    exchanges = _exchanges(lambda second: 1e6 * by_ms if second >= at else 0.0, range(40))
    offsets, steps = estimate_offsets(exchanges)
    assert len(steps) == 1
    (step,) = steps
    assert step.first <= at - 1
    assert step.last >= at - 1
    assert step.last - step.first <= 6, "few requests are lost to it"
    if 5 < at < 35:
        assert step.by_ms == pytest.approx(by_ms, abs=1.0)
    for place, one in enumerate(offsets):
        if step.first <= place <= step.last:
            assert one.offset_ns is None
            assert "was set" in one.reason
        else:
            assert _covers(one, FAR + (1e6 * by_ms if place >= at else 0))


def test_a_clock_set_during_an_exchange_spoils_it_and_its_neighbors() -> None:
    exchanges = _exchanges(lambda _: 0.0, range(20))
    spoilt = exchanges[10]
    exchanges[10] = StampedExchange(spoilt.asked, spoilt.heard, spoilt.answered + 50_000_000, spoilt.got)
    offsets, steps = estimate_offsets(exchanges)
    assert steps
    assert offsets[10].offset_ns is None
    assert all(one.offset_ns is not None for one in (*offsets[:8], *offsets[13:]))


def test_one_host_has_one_clock() -> None:
    clock = estimate_clock("a", "a", "a", None)
    assert (clock.offset_ns, clock.error_ns, clock.one_host) == (0, 0, True)
    assert estimate_clock("a", "", "", None).reason.startswith("the boot id")
    assert estimate_clock("a", "b", "a", None).offset_ns is None


def test_records_of_two_hosts_are_aligned_by_all_of_their_exchanges() -> None:
    config = RequestConfig(0, 2048, 1)
    truth = Truth(offset_ns=FAR, prefill_boot="host-b")
    late = replace(truth, offset_ns=FAR + 30_000_000)
    before = [seen(truth, config, n, start_ns=T0_NS + n * 10**9).record() for n in range(3, 10)]
    after = [seen(late, config, n, start_ns=T0_NS + n * 10**9).record() for n in range(10, 17)]
    home = [seen(Truth(), config, 17).record()]
    clocks, steps = align_clocks([*before, *after, *home])
    assert len(steps) == 1
    assert steps[0].by_ms == pytest.approx(30.0, abs=1.0)
    assert clocks[-1] == home[0].clock
    lost = [clock.offset_ns is None for clock in clocks]
    assert lost[6]
    assert lost[7]
    assert sum(lost) <= 6
    first, last = clocks[0], clocks[13]
    assert first.offset_ns == pytest.approx(FAR, abs=first.error_ns or 0)
    assert last.offset_ns == pytest.approx(FAR + 30_000_000, abs=last.error_ns or 0)
