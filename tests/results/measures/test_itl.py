"""ITL: which gaps between tokens count in a span of time, and their mean."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from results.measures.itl import measure_gaps

MS = 1_000_000


def stamps(*at_ms: int) -> array[int]:
    return array("q", [ms * MS for ms in at_ms])


def test_only_gaps_inside_the_span_count_before_it_and_all_that_overlap_count_during() -> None:
    streams = [stamps(0, 10, 20, 30, 130, 140), stamps(5, 15, 25, 125, 135)]
    before = measure_gaps(streams, 0, 30 * MS, overlapping=False)
    during = measure_gaps(streams, 30 * MS, 125 * MS, overlapping=True)
    assert (before.gaps, before.itl_s, before.worst_s) == (5, 0.010, 0.010)
    assert (during.gaps, during.itl_s, during.worst_s) == (2, 0.100, 0.100)


def test_a_part_without_a_gap_has_no_itl() -> None:
    gaps = measure_gaps([stamps(0, 10)], 20 * MS, 30 * MS, overlapping=True)
    assert (gaps.gaps, gaps.itl_s, gaps.worst_s) == (0, None, None)
    assert measure_gaps([], 0, MS, overlapping=False).gaps == 0


@given(st.lists(st.integers(1, 500), min_size=2, max_size=30), st.integers(0, 3000), st.integers(1, 3000))
def test_gaps_inside_a_span_also_overlap_it(steps_ms: list[int], begin_ms: int, length_ms: int) -> None:
    times = [sum(steps_ms[: place + 1]) for place in range(len(steps_ms))]
    stream, begin, end = stamps(*times), begin_ms * MS, (begin_ms + length_ms) * MS
    inside = measure_gaps([stream], begin, end, overlapping=False)
    over = measure_gaps([stream], begin, end, overlapping=True)
    assert inside.gaps <= over.gaps <= inside.gaps + 2
