"""The specification's split and bounds fit together, and what a source cannot tell is null with the reason."""

from __future__ import annotations

import pytest

from results.traces.cross_session_reuse import CrossReuse, Sum
from results.traces.reuse_bounds import LOCAL_HASHES, NO_HASHES, NO_SESSIONS, bound_reuse
from tests.results.traces.made import count

SHARES = ("intra_session_share", "cross_session_share", "shared_prefix_share")


def test_the_specifications_split_and_bounds_hold_together() -> None:
    bounds = bound_reuse(count(), 3)
    assert bounds.apc_bound_any == pytest.approx(0.803)
    assert bounds.apc_bound_intra == pytest.approx(0.796)
    shares = [getattr(bounds.reuse, name) for name in SHARES]
    assert shares == pytest.approx([0.932, 0.057, 0.011])
    assert sum(shares) == pytest.approx(1)
    assert bounds.reasons == {}
    assert bounds.reuse.standard_error == {}


def test_hashes_of_a_session_say_nothing_about_others() -> None:
    bounds = bound_reuse(count(across=None), 3)
    assert bounds.apc_bound_any == bounds.apc_bound_intra == pytest.approx(0.796)
    assert [getattr(bounds.reuse, name) for name in SHARES] == [None] * 3
    assert set(bounds.reasons) == {"apc_bound_any", *(f"reuse.{name}" for name in SHARES)}
    assert all(reason.startswith(LOCAL_HASHES) for reason in bounds.reasons.values())
    assert bounds.reuse.distinct_blocks == 12_500


def test_without_sessions_there_is_a_bound_but_no_split() -> None:
    bounds = bound_reuse(count(has_sessions=False, intra_tokens=0), 3)
    assert bounds.apc_bound_any == pytest.approx(0.007)
    assert bounds.apc_bound_intra is None
    assert [getattr(bounds.reuse, name) for name in SHARES] == [None] * 3
    assert set(bounds.reasons.values()) == {NO_SESSIONS}
    assert "apc_bound_intra" in bounds.reasons


def test_without_hashes_nothing_is_known() -> None:
    bounds = bound_reuse(count(has_hashes=False), 3)
    assert (bounds.apc_bound_any, bounds.apc_bound_intra, bounds.reuse.reused_tokens) == (None, None, None)
    assert set(bounds.reasons.values()) == {NO_HASHES}


def test_a_trace_that_reuses_nothing_has_a_bound_of_zero_and_no_split() -> None:
    nothing = Sum(0.0, 0.0)
    bounds = bound_reuse(count(intra_tokens=0, across=CrossReuse(nothing, nothing, nothing, 10.0, 1)), 3)
    assert (bounds.apc_bound_any, bounds.apc_bound_intra) == (0, 0)
    assert bounds.reuse.intra_session_share is None
    assert bounds.reasons["reuse.intra_session_share"] == "nothing is reused"


def test_an_estimate_carries_its_error() -> None:
    errors = bound_reuse(count(error=1000.0), 3).reuse.standard_error
    assert errors["apc_bound_any"] == pytest.approx(0.001)
    assert errors["cross_session_share"] == pytest.approx(1000 / 803_000, rel=0.01)
    assert errors["intra_session_share"] > errors["cross_session_share"]
