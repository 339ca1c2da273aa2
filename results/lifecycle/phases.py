"""From stamps to durations (specs/pd_lifecycle, "Derived Metrics"), each with what clocks of two hosts may add to it.

A duration whose stamps are missing, or in the wrong order, is None and its gap says so: none is negative or made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from results.lifecycle.clock import shift_ns
from results.lifecycle.record import HANDSHAKE, HANDSHAKE_PARTS, PHASES, Clock, Colo, MoreStamps, Place, Stamps

BREAKDOWN = (*PHASES, "transfer_total", "e2e")
"""The specification's keys of `breakdown_ms`, in its order."""

TURNED = " precedes "
"""Between the names of two stamps in the gap of a duration that they turn round."""
_T4 = "t4_zmq_metadata"
_SPANS: Mapping[str, tuple[str, str]] = {
    "routing": ("t0_proxy_recv", "t1_proxy_dispatch"),
    "p_queue": ("t1_proxy_dispatch", "t2_p_schedule"),
    "p_prefill": ("t2_p_schedule", "t3_p_prefill_done"),
    HANDSHAKE: ("t3_p_prefill_done", "t5_rdma_start"),
    "rdma_transfer": ("t5_rdma_start", "t6_rdma_complete"),
    "transfer_signal": ("t6_rdma_complete", "t7_d_recv_signal"),
    "d_promotion": ("t7_d_recv_signal", "t8_d_promoted"),
    "d_first_token": ("t8_d_promoted", "t9_d_first_token"),
    "d_decode": ("t9_d_first_token", "t10_d_last_token"),
    "transfer_total": ("t3_p_prefill_done", "t7_d_recv_signal"),
    "e2e": ("t0_proxy_recv", "t10_d_last_token"),
    "ttft": ("t0_proxy_recv", "t9_d_first_token"),
    "client_ttft": ("client_send", "t9_d_first_token"),
    "client_e2e": ("client_send", "t10_d_last_token"),
    "p_send_ready": ("t3_p_prefill_done", "t3b_send_ready"),
    "p_reply": ("t3_p_prefill_done", "proxy_prefill_done"),
    "d_block_alloc": ("proxy_decode_sent", "d_blocks_allocated"),
    "d_pull_request": ("d_blocks_allocated", "d_pull_sent"),
    "zmq_request": ("d_pull_sent", _T4),
    "zmq_response": ("p_response_sent", "t7_d_recv_signal"),
    "d_schedule": ("t8_d_promoted", "d_scheduled"),
    "d_first_decode": ("d_scheduled", "t9_d_first_token"),
}
"""Duration to the stamps it lies between."""
MORE = (
    *HANDSHAKE_PARTS, *(name for name in _SPANS if name not in BREAKDOWN), "ttft_overhead_vs_colo", "pdsep_overhead",
    "pdsep_e2e_overhead",
)  # fmt: skip
"""The keys of `more_ms`."""

_PLACES: Mapping[str, Place] = {
    "t2_p_schedule": "prefill",
    "t3_p_prefill_done": "prefill",
    "t3b_send_ready": "prefill",
    _T4: "prefill",
    "p_response_sent": "prefill",
    "t7_d_recv_signal": "decode",
    "t8_d_promoted": "decode",
    "d_blocks_allocated": "decode",
    "d_pull_sent": "decode",
    "d_scheduled": "decode",
}
"""Whose clock each stamp is of, where it is not the router's; t5 and t6 are of the side that moved the blocks."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """All durations of one request."""

    breakdown_ms: Mapping[str, float | None]
    more_ms: Mapping[str, float | None]
    error_ms: Mapping[str, float]
    residual_share: float | None
    client_residual_share: float | None
    gaps: Mapping[str, str]
    """Of the durations alone."""


@dataclass(frozen=True, slots=True)
class _Span:
    """One duration; `gap` says why `ms` is None."""

    ms: float | None
    error_ms: float = 0.0
    gap: str = ""


def breakdown(
    stamps: Stamps,
    more: MoreStamps,
    clock: Clock,
    colo: Colo,
    *,
    missing: Mapping[str, str],
    write_side: Place = "prefill",
    half_step_ms: float | None = None,
) -> Breakdown:
    """Every duration that the stamps allow.

    missing: why a stamp is None; write_side: whose clock t5 and t6 are of; half_step_ms: taken off `d_promotion`, down
    to zero (0.5 x the decode instance's step, specs/pd_lifecycle, "Risks & Mitigations").
    """
    stamped = asdict(stamps) | asdict(more)
    places = {**_PLACES, "t5_rdma_start": write_side, "t6_rdma_complete": write_side}

    def span(begin: str, end: str) -> _Span:
        for name in (begin, end):
            if stamped[name] is None:
                return _Span(None, gap=f"{name}: {missing.get(name) or 'no stamp'}")
        skew = shift_ns(clock, places.get(begin, "router"), places.get(end, "router"))
        if isinstance(skew, str):
            return _Span(None, gap=skew)
        return _bounded(stamped[end] - stamped[begin] + skew[0], skew[1], f"{end}{TURNED}{begin}")

    found = {name: span(*ends) for name, ends in _SPANS.items()}
    found |= _handshake(span, found[HANDSHAKE], stamped[_T4], stamped["t3_p_prefill_done"])
    if half_step_ms is not None and found["d_promotion"].ms is not None:
        found["d_promotion"] = replace(found["d_promotion"], ms=max(found["d_promotion"].ms - half_step_ms, 0.0))
    found["ttft_overhead_vs_colo"] = _minus(found["ttft"], found["p_prefill"], "p_prefill")
    for name, own, theirs in (
        ("pdsep_overhead", "client_ttft", colo.ttft_ms),
        ("pdsep_e2e_overhead", "client_e2e", colo.e2e_ms),
    ):
        baseline = _Span(theirs, gap=colo.reason or "the combined instance was not measured")
        found[name] = _minus(found[own], baseline, "colo")
    parts = [found[name] for name in PHASES]
    return Breakdown(
        breakdown_ms={name: found[name].ms for name in BREAKDOWN},
        more_ms={name: found[name].ms for name in MORE},
        error_ms={name: one.error_ms for name, one in found.items() if one.ms is not None and one.error_ms},
        residual_share=_residual(found["e2e"], parts),
        client_residual_share=_residual(found["client_e2e"], parts),
        gaps={name: one.gap for name, one in found.items() if one.ms is None},
    )


def _bounded(nanoseconds: int, error_ns: int, reversed_order: str) -> _Span:
    """What is known of a duration that cannot be negative: its bounds are cut at zero, the value is their middle."""
    if nanoseconds >= 0:
        return _Span(nanoseconds / 1e6, error_ns / 1e6)
    if nanoseconds + error_ns >= 0:
        half_ms = (nanoseconds + error_ns) / 2e6
        return _Span(half_ms, half_ms)
    return _Span(None, gap=f"{reversed_order} by {-nanoseconds / 1e6:g} ms")


def _handshake(
    span: Callable[[str, str], _Span], whole: _Span, metadata_ns: int | None, done_ns: int | None
) -> dict[str, _Span]:
    """t3 to t5 in two: until the prefill instance has heard from the decode instance, and from then on.

    With concurrent legs it heard before t3: there was nothing to wait for.
    """
    after = span(_T4, "t5_rdma_start")
    if metadata_ns is None or done_ns is None or after.ms is None:
        gap = after.gap or whole.gap
        return dict.fromkeys(HANDSHAKE_PARTS, _Span(None, gap=gap))
    parts = (_Span(0.0), whole) if metadata_ns <= done_ns else (span("t3_p_prefill_done", _T4), after)
    return dict(zip(HANDSHAKE_PARTS, parts, strict=True))


def _minus(whole: _Span, part: _Span, name: str) -> _Span:
    """A difference, which may be negative."""
    if whole.ms is None:
        return whole
    if part.ms is None:
        return _Span(None, gap=f"{name}: {part.gap}")
    return _Span(whole.ms - part.ms, whole.error_ms + part.error_ms)


def _residual(whole: _Span, parts: Sequence[_Span]) -> float | None:
    known = [part.ms for part in parts if part.ms is not None]
    if not whole.ms or len(known) < len(parts):
        return None
    return round((whole.ms - sum(known)) / whole.ms, 12) + 0.0  # what float64 leaves of a sum is no residual
