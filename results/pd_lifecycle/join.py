"""Joins the record of one request from three sources: the router, the two instances, and the client.

The key is the transfer's id, which the router gives to the prefill request and the decode request. Where an engine does
not pass it on (NIXL), the keys are the engine's own request id, which contains the client's, and the id by which the
decode instance names the prefill request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from results.measures.turns import measure_covered_time
from results.pd_lifecycle.clock_offsets import estimate_clock, exchange_of
from results.pd_lifecycle.phases import break_down
from results.records.decisions import DecisionRecord, KvTransfer
from results.records.lifecycle import (
    NO_PLAIN,
    Colo,
    Counts,
    Ids,
    LifecycleRecord,
    MoreStamps,
    RequestConfig,
    Stamps,
    TransferDetail,
    Verification,
)
from results.records.schemas import SentRequest
from results.records.transfer_log import ProbeEvent, ProbeLog

_PREFILL = {
    "t2_p_schedule": "scheduled",
    "t3_p_prefill_done": "prefill_done",
    "t3b_send_ready": "send_ready",
    "t4_zmq_metadata": "metadata_received",
    "p_response_sent": "response_sent",
}
"""Stamp to the probe event that gives it, on the prefill instance."""
_DECODE = {
    "d_blocks_allocated": "blocks_allocated",
    "d_pull_sent": "pull_sent",
    "t7_d_recv_signal": "received",
    "t8_d_promoted": "promoted",
    "d_scheduled": "scheduled",
}


@dataclass(slots=True)
class _Stamped:
    """Stamps in ns, and the reasons for missing ones."""

    at: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def split(self) -> tuple[Stamps, MoreStamps]:
        return (
            Stamps(**{name: self.at.get(name) for name in Stamps.__dataclass_fields__}),
            MoreStamps(**{name: self.at.get(name) for name in MoreStamps.__dataclass_fields__}),
        )

    def put(self, name: str, t_ns: int | None, why: str) -> None:
        if t_ns is None:
            self.missing[name] = why
        else:
            self.at[name] = t_ns


@dataclass(frozen=True, slots=True)
class _Side:
    """The events of the request on one instance."""

    name: Literal["prefill", "decode"]
    log: ProbeLog
    events: tuple[ProbeEvent, ...]

    def find_first_event(self, kind: str, since_ns: int = 0) -> ProbeEvent | None:
        return next((event for event in self.events if event.event == kind and event.t_ns >= since_ns), None)

    def explain_missing_event(self, kind: str) -> str:
        blind = self.log.blind(kind)
        if blind:
            return f"{self.name} instance: {blind}"
        return f"the {self.name} instance recorded no `{kind}` for this request"


def transfer_of(decision: DecisionRecord | None) -> KvTransfer | None:
    """The router's account of a request's KV transfer; None without a pick or a transfer."""
    return decision.outcome.transfer if decision is not None and decision.outcome is not None else None


def select_request_events(
    decision: DecisionRecord | None, prefill: ProbeLog, decode: ProbeLog
) -> tuple[tuple[ProbeEvent, ...], tuple[ProbeEvent, ...]]:
    """The probe events of a request: those of the prefill instance, those of the decode instance.

    Events of requests without a transfer are dropped: their names may contain the name of this one.
    """
    moved = transfer_of(decision)
    transfer = moved.transfer if moved is not None else ""
    names = [transfer] if decision is None else [decision.request.request, transfer]
    on_decode = decode.of(transfer, names)
    remote = {event.remote_request for event in on_decode if event.remote_request}
    on_prefill = prefill.of(transfer, [*names, *sorted(remote)])
    return drop_unrelated_events(on_prefill), drop_unrelated_events(on_decode)


def drop_unrelated_events(events: Sequence[ProbeEvent]) -> tuple[ProbeEvent, ...]:
    """Drop the events of requests without a transfer: combined requests, and those that check a prefix cache."""
    other = {event.request for event in events if event.part == NO_TRANSFER and event.request}
    return tuple(event for event in events if event.part != NO_TRANSFER and event.request not in other)


NO_TRANSFER = "none"
"""`part` of a request that belongs to no transfer."""


def join_request(
    config: RequestConfig,
    *,
    repetition: int,
    warmup: bool,
    trial: int = 0,
    client: SentRequest,
    decision: DecisionRecord | None,
    prefill: ProbeLog,
    decode: ProbeLog,
    verification: Verification,
    router_boot_id: str,
    colo: Colo = Colo(),  # noqa: B008 - frozen
    plain: Colo = Colo(reason=NO_PLAIN),  # noqa: B008 - frozen
    discarded: str = "",
    kv_bytes_per_token: int | None = None,
) -> LifecycleRecord:
    """The record of one request; its gaps name everything that is missing.

    prefill, decode: their probe logs. verification: what the decode instance held before. colo, plain: the same request
    on a combined engine with and without the connector. kv_bytes_per_token: by the model's configuration.
    """
    moved = transfer_of(decision)
    on_prefill, on_decode = select_request_events(decision, prefill, decode)
    sides = _Side("prefill", prefill, on_prefill), _Side("decode", decode, on_decode)
    stamped = _collect_stamps(client, decision, moved, sides)
    late_ns = _correct_late_dispatch(stamped) if router_boot_id and router_boot_id == prefill.boot_id else 0
    writer = next((side for side in sides if side.find_first_event("write")), sides[0])
    detail, gaps = _sum_writes(stamped, writer, moved)
    stamps, more = stamped.split()
    clock = estimate_clock(router_boot_id, prefill.boot_id, decode.boot_id, exchange_of(stamps, more))
    split = break_down(stamps, more, clock, colo, plain, missing=stamped.missing, write_side=writer.name)
    counts = replace(
        _read_counts(sides, writer, moved),
        kv_bytes_per_token=kv_bytes_per_token,
        dispatch_late_ms=late_ns / 1e6 if late_ns else None,
    )
    return LifecycleRecord(
        config=config,
        timestamps_ns=stamps,
        breakdown_ms=split.breakdown_ms,
        transfer_detail=detail,
        repetition=repetition,
        warmup=warmup,
        verification=verification,
        discarded=discarded or _explain_not_counted(config, client, decision, moved, verification),
        more_timestamps_ns=more,
        more_ms=split.more_ms,
        error_ms=split.error_ms,
        residual_share=split.residual_share,
        client_residual_share=split.client_residual_share,
        gaps={**stamped.missing, **split.gaps, **gaps},
        counts=counts,
        clock=clock,
        colo=colo,
        plain=plain,
        trial=trial,
        transport=moved.transport if moved is not None else "",
        ids=_read_ids(decision, moved),
    )


def _read_ids(decision: DecisionRecord | None, moved: KvTransfer | None) -> Ids:
    request = decision.request.request if decision is not None else ""
    return Ids(request) if moved is None else Ids(request, moved.transfer, moved.source, moved.target)


_CLIENT = {
    "t_send_ns": "client_send",
    "t_first_token_ns": "t9_d_first_token",
    "t_last_token_ns": "t10_d_last_token",
}


def _collect_stamps(
    client: SentRequest, decision: DecisionRecord | None, moved: KvTransfer | None, sides: tuple[_Side, _Side]
) -> _Stamped:
    stamped = _Stamped()
    _put_router_stamps(stamped, decision, moved)
    for field_name, stamp in _CLIENT.items():
        stamped.put(stamp, getattr(client, field_name), client.error or "the client has no such stamp")
    _put_engine_stamps(stamped, *sides)
    return stamped


def _put_router_stamps(stamped: _Stamped, decision: DecisionRecord | None, moved: KvTransfer | None) -> None:
    no_pick = "the router's decision log has no pick of this request"
    stamped.put("t0_proxy_recv", decision.t_ns if decision is not None else None, no_pick)
    for name, t_ns in (
        ("t1_proxy_dispatch", moved.t_source_sent_ns if moved is not None else 0),
        ("proxy_prefill_done", moved.t_source_done_ns if moved is not None else 0),
        ("proxy_decode_sent", moved.t_target_sent_ns if moved is not None else 0),
    ):
        why = "the router ended before this stamp" if moved is not None else "the router moved nothing for this request"
        stamped.put(name, t_ns or None, why if decision is not None else no_pick)


def _correct_late_dispatch(stamped: _Stamped) -> int:
    """Set t1 to t2 where the router stamped its send after t2, on the same clock; returns the difference in ns.

    The router stamps after the socket has taken the request. Where the router loses its core in between, the prefill
    instance may schedule the request before the stamp.
    """
    sent, scheduled = stamped.at.get("t1_proxy_dispatch"), stamped.at.get("t2_p_schedule")
    if sent is None or scheduled is None or sent <= scheduled:
        return 0
    stamped.at["t1_proxy_dispatch"] = scheduled
    return sent - scheduled


def _put_engine_stamps(stamped: _Stamped, prefill: _Side, decode: _Side) -> None:
    for name, kind in _PREFILL.items():
        event = prefill.find_first_event(kind)
        if event is not None and event.ok is False:
            stamped.put(name, None, f"the prefill instance had nothing to send: {event.status or 'no reason given'}")
        else:
            stamped.put(name, event.t_ns if event is not None else None, prefill.explain_missing_event(kind))
    promoted = decode.find_first_event("promoted")
    for name, kind in _DECODE.items():
        event = decode.find_first_event(kind, promoted.t_ns if kind == "scheduled" and promoted is not None else 0)
        if event is not None and event.ok is False:
            stamped.put(name, None, "the decode instance reports that the blocks did not arrive")
        else:
            stamped.put(name, event.t_ns if event is not None else None, decode.explain_missing_event(kind))


def _sum_writes(stamped: _Stamped, writer: _Side, moved: KvTransfer | None) -> tuple[TransferDetail, dict[str, str]]:
    """Put t5 and t6; return the totals of the writes, and the reasons for missing ones."""
    writes = [event for event in writer.events if event.event == "write"]
    failed = any(event.ok is False for event in writes)
    begun = [event.t5_ns for event in writes if event.t5_ns is not None]
    ended = [event.t6_ns for event in writes if event.t6_ns is not None and not failed]
    why_none = writer.explain_missing_event("write")
    stamped.put("t5_rdma_start", min(begun, default=None), why_none)
    stamped.put("t6_rdma_complete", max(ended, default=None), "a write failed" if failed else why_none)
    gaps = {}
    count = _sum_if_all_known(event.bytes for event in writes) if not failed else None
    if count is None and moved is not None and moved.bytes_from == "counter":
        count = moved.bytes
    served = max((max(len(event.carries), len(event.decode_requests)) for event in writes), default=0)
    if served > 1:
        count, gaps["bytes_transferred"] = None, f"one write served {served} transfers"
    elif count is None:
        gaps["bytes_transferred"] = "a write failed" if failed else why_none
    blind = writer.log.blind("write_submit")
    if blind:
        gaps["rdma_write_submit"] = blind
    spans = ((event.t5_ns, event.t6_ns) for event in writes if event.t5_ns is not None and event.t6_ns is not None)
    write_ms = measure_covered_time(spans) / 1e6 if ended else None
    prepared = [event.build_params_us for event in writes if event.build_params_us is not None]
    blocks = _sum_if_all_known(event.blocks for event in writes)
    detail = TransferDetail(
        bytes_transferred=count,
        num_rdma_ops=_sum_if_all_known(event.operations for event in writes),
        num_blocks=blocks if blocks is not None or moved is None else moved.blocks,
        num_layers=max((event.layers for event in writes if event.layers is not None), default=None),
        build_params_ms=sum(prepared) / 1e3 if prepared else None,
        rdma_write_ms=write_ms,
        effective_bw_gbps=8 * count / write_ms / 1e6 if count is not None and write_ms else None,
    )
    why = "a write failed" if failed else "the probe did not report it" if writes else why_none
    for name, value in asdict(detail).items():
        if value is None:
            gaps.setdefault(name, gaps.get("bytes_transferred", why) if name == "effective_bw_gbps" else why)
    return detail, gaps


def _sum_if_all_known(counts: Iterable[int | None]) -> int | None:
    """The sum; None where a count is unknown, or there is none."""
    values = list(counts)
    known = [count for count in values if count is not None]
    return sum(known) if known and len(known) == len(values) else None


def _read_counts(sides: tuple[_Side, _Side], writer: _Side, moved: KvTransfer | None) -> Counts:
    prefill, decode = sides
    scheduled, allocated = prefill.find_first_event("scheduled"), decode.find_first_event("blocks_allocated")
    steps, write = decode.find_first_event("steps"), writer.find_first_event("write")
    return Counts(
        p_cached_tokens=scheduled.cached_tokens if scheduled is not None else None,
        external_tokens=allocated.external_tokens if allocated is not None else None,
        local_tokens=allocated.local_tokens if allocated is not None else None,
        computed_tokens=moved.computed_tokens if moved is not None else None,
        write_calls=sum(event.event == "write" for event in writer.events) or None,
        write_side=writer.name,
        write_end_from=(write.t6_from or "") if write is not None else "",
        d_step_ms=steps.step_p50_us / 1e3 if steps is not None and steps.step_p50_us is not None else None,
        attempts=moved.attempts if moved is not None else None,
        run_delay_us=_sum_known(event.run_delay_us for event in writer.events if event.event == "write"),
    )


def _sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of the known values; None without one."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _explain_not_counted(
    config: RequestConfig,
    client: SentRequest,
    decision: DecisionRecord | None,
    moved: KvTransfer | None,
    verification: Verification,
) -> str:
    """Why this request does not count for its configuration; empty where it does."""
    if client.status != "ok":
        return f"the request ended as {client.status}: {client.error or 'no reason given'}"
    if client.completion_tokens is None:
        return f"the answer does not report its number of tokens; {config.output_length} were requested"
    if client.completion_tokens != config.output_length:
        return f"the answer has {client.completion_tokens} tokens; {config.output_length} were requested"
    if decision is None:
        return "the router's decision log has no pick of this request"
    if moved is None:
        return "the router moved nothing for this request"
    if moved.status != "transferred":
        return f"the transfer was {moved.status}: {moved.reason or 'no reason given'}"
    if moved.attempts > 1:
        return f"the transfer took {moved.attempts} attempts"
    return "" if verification.ok else verification.reason or "what the decode instance held was not verified"
