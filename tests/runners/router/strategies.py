"""Arbitrary legal views and requests."""

from __future__ import annotations

from hypothesis import strategies as st

from results.records.decisions import ClusterView, InstanceLoad, RoutedRequest

NAMES = ("e0", "e1", "e2", "e3")
COUNTS = st.integers(0, 50)
TOKENS = st.integers(0, 100_000)


@st.composite
def instance_loads(draw: st.DrawFn, name: str) -> InstanceLoad:
    available = draw(st.booleans())
    capacity = draw(st.none() | st.integers(1, 200_000))
    free = None if capacity is None else draw(st.integers(0, capacity))
    return InstanceLoad(
        instance=name,
        role=draw(st.sampled_from(("both", "both", "prefill", "decode"))),
        available=available,
        why_unavailable="" if available else draw(st.sampled_from(("breaker open", "draining"))),
        num_requests=draw(COUNTS),
        pending_prefill_tokens=draw(TOKENS),
        ongoing_tokens=draw(TOKENS),
        ongoing_decode_tokens=draw(TOKENS),
        kv_capacity_tokens=capacity,
        free_kv_tokens=free,
        retained_tokens=draw(TOKENS),
        assigned=draw(COUNTS),
        active_sessions=draw(COUNTS),
        paused_for_s=draw(st.sampled_from((0.0, 0.0, 0.5, 30.0))),
    )


@st.composite
def clusters(draw: st.DrawFn) -> ClusterView:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    loads = tuple(draw(instance_loads(name)) for name in names)
    return ClusterView(loads, draw(COUNTS), draw(COUNTS))


@st.composite
def asked(draw: st.DrawFn) -> RoutedRequest:
    tokens = draw(TOKENS)
    some = st.dictionaries(st.sampled_from(NAMES), st.integers(0, tokens), max_size=4)
    return RoutedRequest(
        request="r",
        session=draw(st.sampled_from(("", "s1", "s2"))),
        turn=draw(st.integers(0, 9)),
        input_tokens=tokens,
        max_tokens=draw(st.integers(0, 5000)),
        block_tokens=draw(st.sampled_from((1, 16, 512))),
        cached_tokens=draw(some),
        owner=draw(st.sampled_from(("", "", *NAMES, "gone"))),
        since_migration_s=draw(st.none() | st.floats(0, 1000)),
        rejects=draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5), max_size=4)),
        tried=tuple(draw(st.sets(st.sampled_from(NAMES), max_size=3))),
        moving_to=draw(st.sampled_from(("", "", *NAMES))),
        min_move_tokens=draw(st.sampled_from((0, 1, 1, 5000))),
        cut_off=draw(st.dictionaries(st.sampled_from(NAMES), st.just("quarantined"), max_size=3)),
    )
