from __future__ import annotations

import numpy as np
import pytest

from results.records.load_specs import ReplaySpec
from runners.load.fidelity import WindowCounts, judge_fidelity

LIMITS = ReplaySpec(
    url="http://127.0.0.1:1",
    model="m",
    requests_path="",
    trace_path="",
    lateness_p99_s=0.010,
    achieved_ratio=0.98,
    client_cpu_share=0.9,
)


def lateness(milliseconds: list[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([round(value * 1e6) for value in milliseconds], dtype=np.int64)


def test_a_client_that_kept_its_schedule_is_faithful() -> None:
    fidelity = judge_fidelity(lateness([0.1] * 99 + [0.5]), WindowCounts(100, 100, 50.0, 5.0), LIMITS)
    assert not fidelity.degraded
    assert fidelity.reason == ""
    assert fidelity.lateness_p50_s == pytest.approx(1e-4)
    assert fidelity.lateness_max_s == pytest.approx(5e-4)
    assert fidelity.requested_rate_per_s == fidelity.achieved_rate_per_s == pytest.approx(2.0)
    assert fidelity.client_cpu_share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("late", "counts", "word"),
    [
        ([0.1] * 95 + [50.0] * 5, WindowCounts(100, 100, 50.0, 5.0), "lateness p99 50 ms"),
        ([0.1] * 100, WindowCounts(100, 90, 50.0, 5.0), "0.900 of the scheduled arrivals"),
        ([0.1] * 100, WindowCounts(100, 100, 50.0, 48.0), "0.96 of a core"),
    ],
)
def test_a_client_that_fell_behind_is_degraded_and_says_in_what(
    late: list[float], counts: WindowCounts, word: str
) -> None:
    fidelity = judge_fidelity(lateness(late), counts, LIMITS)
    assert fidelity.degraded
    assert word in fidelity.reason


def test_the_p99_of_a_small_sample_is_its_worst() -> None:
    """With fewer than a hundred arrivals one late send is already more than a percent of them."""
    fidelity = judge_fidelity(lateness([0.1] * 49 + [12.0]), WindowCounts(50, 50, 50.0, None), LIMITS)
    assert fidelity.degraded
    assert fidelity.client_cpu_share is None


def test_no_arrival_in_the_window_is_no_verdict_in_its_favor() -> None:
    fidelity = judge_fidelity(lateness([]), WindowCounts(0, 0, 0.0, None), LIMITS)
    assert fidelity.degraded
    assert fidelity.lateness_p99_s is None
    assert fidelity.achieved_ratio is None
