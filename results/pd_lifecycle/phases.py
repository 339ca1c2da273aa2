"""Durations from stamps (specs/pd_lifecycle, "Derived Metrics"), each with its error by the clocks of two hosts.

A duration whose stamps are missing or out of order is None, and its gap gives the reason. None is negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from results.pd_lifecycle.clock_offsets import shift_ns
from results.records.lifecycle import (
    HANDSHAKE,
    HANDSHAKE_PARTS,
    NO_PLAIN,
    PHASES,
    PLAIN_OVERHEAD,
    Clock,
    ClockSide,
    Colo,
    LifecycleRecord,
    MoreStamps,
    Stamps,
)

BREAKDOWN = (*PHASES, "transfer_total", "e2e")
"""The specification's keys of `breakdown_ms`, in its order."""

TURNED = " precedes "
"""Separates two stamp names in the gap of a duration whose stamps are out of order."""
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
    "router_ttft": ("t0_proxy_recv", "t9_d_first_token"),
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
"""Duration to its begin and end stamp."""
MORE = (
    *HANDSHAKE_PARTS, *(name for name in _SPANS if name not in BREAKDOWN), "ttft_overhead_vs_colo", "pdsep_overhead",
    "pdsep_e2e_overhead", PLAIN_OVERHEAD,
)  # fmt: skip
"""The keys of `more_ms`."""

_SIDES: Mapping[str, ClockSide] = {
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
"""The clock of each stamp, where it is not the router's. t5 and t6 have the clock of the side that writes."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    breakdown_ms: Mapping[str, float | None]
    more_ms: Mapping[str, float | None]
    error_ms: Mapping[str, float]
    residual_share: float | None
    client_residual_share: float | None
    gaps: Mapping[str, str]
    """Duration to the reason why it is None."""


@dataclass(frozen=True, slots=True)
class _Span:
    ms: float | None
    error_ms: float = 0.0
    gap: str = ""
    """Why `ms` is None."""


def break_down(
    stamps: Stamps,
    more: MoreStamps,
    clock: Clock,
    colo: Colo,
    plain: Colo = Colo(reason=NO_PLAIN),  # noqa: B008 - frozen
    *,
    missing: Mapping[str, str],
    write_side: ClockSide = "prefill",
    half_step_ms: float | None = None,
) -> Breakdown:
    """Every duration that the stamps allow.

    missing: stamp to the reason why it is None. write_side: the clock of t5 and t6. half_step_ms: subtracted from
    `d_promotion`, down to zero (0.5 x the decode instance's step, specs/pd_lifecycle, "Risks & Mitigations").
    """
    stamped = asdict(stamps) | asdict(more)
    sides = {**_SIDES, "t5_rdma_start": write_side, "t6_rdma_complete": write_side}

    def measure_span(begin: str, end: str) -> _Span:
        for name in (begin, end):
            if stamped[name] is None:
                return _Span(None, gap=f"{name}: {missing.get(name) or 'no stamp'}")
        skew = shift_ns(clock, sides.get(begin, "router"), sides.get(end, "router"))
        if isinstance(skew, str):
            return _Span(None, gap=skew)
        return _bound_span(stamped[end] - stamped[begin] + skew[0], skew[1], f"{end}{TURNED}{begin}")

    spans = {name: measure_span(*ends) for name, ends in _SPANS.items()}
    spans |= _split_handshake(measure_span, spans[HANDSHAKE], stamped[_T4], stamped["t3_p_prefill_done"])
    if half_step_ms is not None and spans["d_promotion"].ms is not None:
        spans["d_promotion"] = replace(spans["d_promotion"], ms=max(spans["d_promotion"].ms - half_step_ms, 0.0))
    spans["ttft_overhead_vs_colo"] = _subtract_span(spans["router_ttft"], spans["p_prefill"], "p_prefill")
    for name, own, theirs, baseline in (
        ("pdsep_overhead", "client_ttft", colo.ttft_ms, colo),
        ("pdsep_e2e_overhead", "client_e2e", colo.e2e_ms, colo),
        (PLAIN_OVERHEAD, "client_ttft", plain.ttft_ms, plain),
    ):
        alone = _Span(theirs, gap=baseline.reason or "the combined engine was not measured")
        spans[name] = _subtract_span(spans[own], alone, "plain" if baseline is plain else "colo")
    parts = [spans[name] for name in PHASES]
    return Breakdown(
        breakdown_ms={name: spans[name].ms for name in BREAKDOWN},
        more_ms={name: spans[name].ms for name in MORE},
        error_ms={name: one.error_ms for name, one in spans.items() if one.ms is not None and one.error_ms},
        residual_share=_compute_residual_share(spans["e2e"], parts),
        client_residual_share=_compute_residual_share(spans["client_e2e"], parts),
        gaps={name: one.gap for name, one in spans.items() if one.ms is None},
    )


def count_missing_phases(records: Iterable[LifecycleRecord]) -> Counter[tuple[str, str]]:
    """By phase and the reason for its absence, the number of records that lack it."""
    return Counter(
        (name, record.gaps.get(name, "unknown"))
        for record in records
        for name, value in record.phases_ms.items()
        if value is None
    )


def _bound_span(nanoseconds: int, error_ns: int, reversed_order: str) -> _Span:
    """A duration that cannot be negative: its bounds end at zero, and the value is their center."""
    if nanoseconds >= 0:
        return _Span(nanoseconds / 1e6, error_ns / 1e6)
    if nanoseconds + error_ns >= 0:
        half_ms = (nanoseconds + error_ns) / 2e6
        return _Span(half_ms, half_ms)
    return _Span(None, gap=f"{reversed_order} by {-nanoseconds / 1e6:g} ms")


def _split_handshake(
    measure_span: Callable[[str, str], _Span], handshake: _Span, metadata_ns: int | None, done_ns: int | None
) -> dict[str, _Span]:
    """Split t3 to t5 at t4, when the metadata of the decode instance reaches the prefill instance.

    With concurrent prefill and decode requests t4 comes before t3, and metadata_wait is zero.
    """
    after = measure_span(_T4, "t5_rdma_start")
    if metadata_ns is None or done_ns is None or after.ms is None:
        gap = after.gap or handshake.gap
        return dict.fromkeys(HANDSHAKE_PARTS, _Span(None, gap=gap))
    parts = (_Span(0.0), handshake) if metadata_ns <= done_ns else (measure_span("t3_p_prefill_done", _T4), after)
    return dict(zip(HANDSHAKE_PARTS, parts, strict=True))


def _subtract_span(total: _Span, part: _Span, name: str) -> _Span:
    """total - part, which may be negative."""
    if total.ms is None:
        return total
    if part.ms is None:
        return _Span(None, gap=f"{name}: {part.gap}")
    return _Span(total.ms - part.ms, total.error_ms + part.error_ms)


def _compute_residual_share(total: _Span, parts: Sequence[_Span]) -> float | None:
    known = [part.ms for part in parts if part.ms is not None]
    if not total.ms or len(known) < len(parts):
        return None
    return round((total.ms - sum(known)) / total.ms, 12) + 0.0  # the rounding error of a sum is no residual
