"""Three sides' stamps become the phases that were there; what a side did not see is named, and nothing is made up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.pd_lifecycle.join import select_request_events
from results.records.decisions import KvTransfer
from results.records.lifecycle import PHASES, LifecycleRecord, RequestConfig
from results.records.schemas import RequestStatus
from results.records.transfer_log import ProbeEvent, ProbeLog, ProbeStatus, read_probe
from tests.results.pd_lifecycle.synthetic import BYTES_PER_TOKEN, D_SEES, P_SEES, Seen, Truth, client_record, seen

CONFIG = RequestConfig(4096, 8192, 32)
QUIET = Truth(noise=0.0)


@pytest.fixture
def one() -> Seen:
    return seen(QUIET, CONFIG)


def _without(log: ProbeLog, *kinds: str) -> ProbeLog:
    return replace(log, events=tuple(event for event in log.events if event.event not in kinds))


def _changed(log: ProbeLog, kind: str, **fields: Any) -> ProbeLog:
    events = (msgspec.structs.replace(one, **fields) if one.event == kind else one for one in log.events)
    return replace(log, events=tuple(events))


def _moved(one: Seen, **fields: Any) -> Seen:
    outcome = one.decision.outcome
    assert outcome is not None
    assert isinstance(outcome.transfer, KvTransfer)
    transfer = replace(outcome.transfer, **fields)
    changed = msgspec.structs.replace(outcome, transfer=transfer)
    return replace(one, decision=msgspec.structs.replace(one.decision, outcome=changed))


def test_every_phase_is_what_it_was_made_of(one: Seen) -> None:
    record = one.record()
    moved = 8192 * BYTES_PER_TOKEN
    write_ms = 0.5 + 0.8 * moved / 1e6
    actual = {**record.breakdown_ms, **record.more_ms}
    expected = {
        "routing": 0.2, "p_queue": 4.0, "p_prefill": 81.92, "metadata_wait": 12.0, "zmq_handshake": 12.6,
        "rdma_transfer": write_ms, "transfer_signal": 0.3, "d_promotion": 2.2, "d_decode": 46.5,
        "transfer_total": 12.6 + write_ms + 0.3, "d_block_alloc": 3.8, "d_pull_request": 0.7, "zmq_request": 0.5,
        "zmq_response": 0.2, "p_reply": 3.0, "p_send_ready": 0.4, "d_schedule": 0.2, "zmq_after_metadata": 0.6,
    }  # fmt: skip
    assert {name: actual[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    assert record.transfer_detail.bytes_transferred == moved
    assert record.transfer_detail.effective_bw_gbps == pytest.approx(8 * moved / write_ms / 1e6, rel=1e-5)
    assert record.transfer_detail.num_blocks == 64
    assert record.counts.d_step_ms == 2.0
    assert set(record.gaps) == {"pdsep_overhead_vs_plain"}
    assert record.error_ms == {}
    assert record.counted


def test_overheads_are_against_the_clients_own_clock(one: Seen) -> None:
    record = one.record()
    ttft, colo = record.ms("client_ttft"), one.colo.ttft_ms
    assert ttft is not None
    assert colo is not None
    assert record.ms("router_ttft") == pytest.approx(ttft - 0.7)
    assert record.ms("pdsep_overhead") == pytest.approx(ttft - colo)
    assert record.ms("ttft_overhead_vs_colo") == pytest.approx(ttft - 0.7 - 81.92)


def test_with_concurrent_legs_the_handshake_begins_when_the_prefill_ends() -> None:
    record = seen(replace(QUIET, wait_ms=-50.0), CONFIG).record()
    assert record.breakdown_ms["zmq_handshake"] == record.more_ms["zmq_after_metadata"] == pytest.approx(0.6)
    assert record.more_ms["metadata_wait"] == 0.0
    assert record.breakdown_ms["transfer_total"] == pytest.approx(0.6 + 0.5 + 0.8 * 8192 * 512 / 1e6 + 0.3, abs=1e-5)
    assert record.residual_share == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("side", "kind", "stamp", "phases"),
    [
        ("prefill", "scheduled", "t2_p_schedule", {"p_queue", "p_prefill"}),
        ("prefill", "prefill_done", "t3_p_prefill_done", {"p_prefill", "metadata_wait", "transfer_total"}),
        ("prefill", "write", "t5_rdma_start", {"rdma_transfer", "zmq_handshake", "transfer_signal"}),
        ("decode", "received", "t7_d_recv_signal", {"transfer_signal", "d_promotion", "transfer_total"}),
        ("decode", "promoted", "t8_d_promoted", {"d_promotion", "d_first_token", "d_schedule"}),
    ],
)
def test_a_missing_stamp_is_named_and_takes_only_its_own_phases(
    one: Seen, side: str, kind: str, stamp: str, phases: set[str]
) -> None:
    record = one.record(**{side: _without(getattr(one, side), kind)})
    assert f"`{kind}`" in record.gaps[stamp]
    assert side in record.gaps[stamp]
    for name in phases:
        assert record.ms(name) is None
        assert stamp in record.gaps[name] or "t6" in record.gaps[name]
    assert record.breakdown_ms["e2e"] is not None
    assert record.residual_share is None


def test_a_probe_that_cannot_see_says_why_itself(one: Seen) -> None:
    blind = ProbeStatus(
        role="engine", pid=1, boot_id="host-a", available={"promoted": False}, reasons={"promoted": "no hook"}
    )
    log = replace(_without(one.decode, "promoted"), statuses=(*one.decode.statuses, blind))
    assert one.record(decode=log).gaps["t8_d_promoted"] == "decode instance: no hook"
    assert "wrote nothing" in one.record(decode=ProbeLog()).gaps["t7_d_recv_signal"]


def test_stamps_in_the_wrong_order_give_no_duration(one: Seen) -> None:
    received = next(event for event in one.decode.events if event.event == "received")
    early = _changed(one.decode, "received", t_ns=received.t_ns - 5_000_000)
    record = one.record(decode=early)
    assert record.breakdown_ms["transfer_signal"] is None
    assert record.gaps["transfer_signal"] == "t7_d_recv_signal precedes t6_rdma_complete by 4.7 ms"
    assert record.residual_share is None
    assert all(value is None or value >= 0 for value in record.breakdown_ms.values())


def test_a_metadata_message_after_the_write_explains_no_handshake(one: Seen) -> None:
    stamp = next(event.t_ns for event in one.prefill.events if event.event == "write")
    record = one.record(prefill=_changed(one.prefill, "metadata_received", t_ns=stamp))
    assert record.more_ms["zmq_after_metadata"] is None
    assert record.more_ms["metadata_wait"] is None
    assert record.breakdown_ms["zmq_handshake"] == pytest.approx(12.6)


def test_a_failed_write_has_no_end_and_no_bytes(one: Seen) -> None:
    record = one.record(prefill=_changed(one.prefill, "write", ok=False))
    assert record.timestamps_ns.t5_rdma_start is not None
    assert record.gaps["t6_rdma_complete"] == "a write failed"
    assert record.transfer_detail.bytes_transferred is None
    assert record.transfer_detail.effective_bw_gbps is None


@pytest.mark.parametrize(
    ("side", "kind", "fields", "stamp", "why"),
    [
        ("decode", "received", {}, "t7_d_recv_signal", "the decode instance reports that the blocks did not arrive"),
        ("prefill", "prefill_done", {"status": "FINISHED_STOPPED"}, "t3_p_prefill_done",
         "the prefill instance had nothing to send: FINISHED_STOPPED"),
    ],
)  # fmt: skip
def test_an_event_that_reports_a_failure_is_no_stamp(
    one: Seen, side: str, kind: str, fields: dict[str, str], stamp: str, why: str
) -> None:
    record = one.record(**{side: _changed(getattr(one, side), kind, ok=False, **fields)})
    assert record.gaps[stamp] == why


def test_one_write_for_several_transfers_gives_none_of_them_its_bytes(one: Seen) -> None:
    transfer = one.decision.outcome.transfer.transfer if one.decision.outcome and one.decision.outcome.transfer else ""
    record = one.record(prefill=_changed(one.prefill, "write", transfer=None, transfers=(transfer, "other")))
    assert record.transfer_detail.bytes_transferred is None
    assert record.gaps["bytes_transferred"] == "one write served 2 transfers"
    assert record.breakdown_ms["rdma_transfer"] is not None


def test_several_writes_are_one_transfer(one: Seen) -> None:
    first = next(event for event in one.prefill.events if event.event == "write")
    assert first.t6_ns is not None
    end = first.t6_ns + 3_000_000
    later = msgspec.structs.replace(first, t_ns=end, t5_ns=first.t6_ns + 1_000_000, t6_ns=end)
    log = replace(one.prefill, events=(*one.prefill.events, later))
    slow = _changed(one.decode, "received", t_ns=first.t6_ns + 3_100_000)
    detail = one.record(prefill=log, decode=slow).transfer_detail
    assert first.bytes is not None
    assert first.t5_ns is not None
    assert detail.bytes_transferred == 2 * first.bytes
    assert detail.num_rdma_ops == 4
    assert detail.rdma_write_ms == pytest.approx((first.t6_ns - first.t5_ns) / 1e6 + 2.0), "without the pause"


def test_other_requests_of_the_same_engines_are_left_alone() -> None:
    one, other = seen(QUIET, CONFIG, 3), seen(QUIET, CONFIG, 4, start_ns=1_000)
    both = {
        side: replace(log, events=tuple(sorted((*log.events, *getattr(other, side).events), key=lambda e: e.t_ns)))
        for side, log in (("prefill", one.prefill), ("decode", one.decode))
    }
    assert one.record(**both) == one.record()


def test_events_that_know_only_the_engines_id_belong_to_it(one: Seen) -> None:
    nameless = tuple(
        msgspec.structs.replace(event, transfer=None) if event.event in ("promoted", "scheduled", "steps") else event
        for event in one.decode.events
    )
    assert one.record(decode=replace(one.decode, events=nameless)) == one.record()


def _nixl(one: Seen) -> Seen:
    """The same request as NIXL's probe tells it: no transfer ids, the decode instance reads, no metadata message."""
    p_request = next(event.request for event in one.prefill.events if event.event == "scheduled")
    actual = [one for one in one.prefill.events if one.event in ("scheduled", "prefill_done", "send_ready")]
    write = next(event for event in one.prefill.events if event.event == "write")
    d_request = next(event.request for event in one.decode.events if event.event == "received")
    reads = msgspec.structs.replace(
        write, request=d_request, transfers=(), decode_requests=(d_request,), t6_from="telemetry"
    )
    reasons = dict.fromkeys(("metadata_received", "response_sent"), "nixl: the decode instance reads")
    status = ProbeStatus(
        role="worker", pid=1, boot_id="host-a", available=dict.fromkeys(P_SEES, True) | dict.fromkeys(reasons, False),
        reasons=reasons,
    )  # fmt: skip
    one = _moved(one, transport="nixl")

    def nameless(events: Iterable[ProbeEvent], remote: str | None) -> tuple[ProbeEvent, ...]:
        named = (msgspec.structs.replace(event, transfer=None, remote_request=remote) for event in events)
        return tuple(sorted(named, key=lambda event: event.t_ns))

    return replace(
        one,
        prefill=ProbeLog(nameless(actual, None), (status,)),
        decode=ProbeLog(nameless((*one.decode.events, reads), p_request), one.decode.statuses),
    )


def test_nixl_is_joined_by_request_ids_and_lacks_only_the_metadata_message(one: Seen) -> None:
    record = _nixl(one).record()
    assert record.gaps["t4_zmq_metadata"] == "prefill instance: nixl: the decode instance reads"
    assert record.breakdown_ms["zmq_handshake"] == pytest.approx(12.6)
    assert record.more_ms["metadata_wait"] is None
    assert tuple(record.phases_ms) == tuple(record.parts_ms) == PHASES
    assert record.residual_share == pytest.approx(0.0, abs=1e-9), "the phases still add up"
    assert record.counts.write_side == "decode"
    assert record.transfer_detail.bytes_transferred == 8192 * BYTES_PER_TOKEN
    assert record.counted


def test_what_is_not_known_of_a_transfer_has_its_reason_under_its_name(one: Seen) -> None:
    def unexplained(record: LifecycleRecord) -> set[str]:
        detail = msgspec.to_builtins(record.transfer_detail)
        return {name for name, value in detail.items() if value is None and not record.gaps.get(name)}

    none = one.record(prefill=_without(one.prefill, "write"))
    assert none.transfer_detail.rdma_write_ms is None
    assert not unexplained(none)
    bare = one.record(prefill=_changed(one.prefill, "write", operations=None, layers=None, build_params_us=None))
    assert bare.transfer_detail.bytes_transferred is not None
    assert not unexplained(bare)
    assert not unexplained(one.record(prefill=_changed(one.prefill, "write", ok=False)))


def test_a_process_that_cannot_read_its_boot_id_still_says_what_it_sees(tmp_path: Path) -> None:
    status = {"event": "status", "role": "engine", "t_ns": 1, "boot_id": None, "available": {"promoted": False}}
    (tmp_path / "transfer.1.jsonl").write_bytes(msgspec.json.encode(status) + b"\n")
    log = read_probe(tmp_path)
    assert log.gaps == ()
    assert log.boot_id == ""
    assert log.blind("promoted")


def test_when_the_first_piece_was_written_is_not_known_and_that_is_said(one: Seen) -> None:
    status = msgspec.structs.replace(
        one.prefill.statuses[0],
        available={**one.prefill.statuses[0].available, "write_submit": False},
        reasons={"write_submit": "the call returns when all is written"},
    )
    record = one.record(prefill=replace(one.prefill, statuses=(status,)))
    assert "the call returns when all is written" in record.gaps["rdma_write_submit"]


def test_a_request_without_a_decision_has_no_router_and_does_not_count(one: Seen) -> None:
    record = one.record(decision=None)
    assert "no pick" in record.gaps["t0_proxy_recv"]
    assert "no pick" in record.discarded
    assert record.breakdown_ms["e2e"] is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": "failed", "reason": "HTTP 500"}, "the transfer was failed: HTTP 500"),
        ({"status": "refused", "reason": "quarantine"}, "the transfer was refused: quarantine"),
        ({"attempts": 2}, "the transfer took 2 attempts"),
    ],
)
def test_a_transfer_that_did_not_go_at_once_does_not_count(one: Seen, fields: dict[str, Any], why: str) -> None:
    assert _moved(one, **fields).record().discarded == why


def test_what_the_client_did_not_get_does_not_count(one: Seen) -> None:
    send = one.client.t_send_ns
    assert send is not None
    failed = replace(client_record(send, None, None, CONFIG), status=RequestStatus.ERROR, error="HTTP 500")
    record = one.record(client=failed)
    assert record.discarded == "the request ended as error: HTTP 500"
    assert record.gaps["t9_d_first_token"] == "HTTP 500"
    short = replace(one.client, completion_tokens=31)
    assert one.record(client=short).discarded == "the answer has 31 tokens; 32 were requested"
    unjudged = replace(one.client, completion_tokens=None)
    assert "does not report its number of tokens" in one.record(client=unjudged).discarded


def test_requests_of_no_transfer_are_left_alone_whatever_they_are_called(one: Seen) -> None:
    """A combined request whose id contains this one's, sent before it: its first schedule is not this one's."""
    name = one.decision.request.request
    promoted = next(event for event in one.decode.events if event.event == "promoted")
    others = [
        ProbeEvent(event="scheduled", t_ns=promoted.t_ns + at, request=f"cmpl-{name}-colo-0-cc", part="none")
        for at in (-10_000_000, 50_000)
    ]
    events = tuple(sorted((*one.decode.events, *others), key=lambda event: event.t_ns))
    assert one.record(decode=replace(one.decode, events=events)) == one.record()
    _, on_decode = select_request_events(one.decision, one.prefill, replace(one.decode, events=tuple(others)))
    assert on_decode == (), "evidence of another request is none of this one's"


def test_a_wait_for_a_core_is_kept(one: Seen) -> None:
    assert one.record().counts.run_delay_us is None
    assert one.record(prefill=_changed(one.prefill, "write", run_delay_us=120.0)).counts.run_delay_us == 120.0
    assert one.record(discarded="evicted").discarded == "evicted"


def test_a_log_of_an_earlier_version_has_the_same_events(tmp_path: Path, one: Seen) -> None:
    """It calls `part` `leg`."""
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in one.prefill.events)
    for name, text in (("old", lines.replace(b'"part":', b'"leg":')), ("new", lines)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "transfer.7.jsonl").write_bytes(text)
    old = read_probe(tmp_path / "old")
    assert "prefill" in [event.part for event in old.events]
    assert old.events == read_probe(tmp_path / "new").events


def test_a_probes_folder_is_read_with_all_of_its_processes(tmp_path: Path, one: Seen) -> None:
    encode = msgspec.json.Encoder().encode
    available = {"write": True}
    status = {"event": "status", "role": "engine", "pid": 7, "boot_id": "host-a", "t_ns": 1, "available": available}
    lines = [encode(status), *(encode(event) for event in one.prefill.events)]
    half = len(lines) // 2
    (tmp_path / "transfer.7.jsonl").write_bytes(b"\n".join(lines[:half]) + b"\n" + b'{"event": "wri')
    (tmp_path / "transfer.8.jsonl").write_bytes(b"\n".join([*lines[half:], b"{nonsense}"]) + b"\n")
    log = read_probe(tmp_path)
    assert log.events == tuple(sorted(one.prefill.events, key=lambda event: event.t_ns))
    assert log.boot_id == "host-a"
    assert sorted(gap.reason for gap in log.gaps) == ["ends in half a line", "holds 1 damaged lines"]
    assert read_probe(tmp_path / "nowhere").gaps[0].reason == "holds no file of the transfer probe"


def test_a_later_status_of_a_process_replaces_the_earlier() -> None:
    sees = ProbeStatus(role="engine", pid=1, available=dict.fromkeys(D_SEES, True))
    broke = ProbeStatus(role="engine", pid=1, available={"promoted": False}, reasons={"promoted": "it raised"})
    assert ProbeLog(statuses=(sees,)).blind("promoted") == ""
    assert ProbeLog(statuses=(sees, broke)).blind("promoted") == "it raised"


def test_a_send_that_is_stamped_late_was_sent_before_the_other_side_began(one: Seen) -> None:
    """The router lost its core between its send and the stamp; on one clock that is known."""
    t2 = next(event.t_ns for event in one.prefill.events if event.event == "scheduled")
    record = _moved(one, t_source_sent_ns=t2 + 3_000_000).record()
    assert record.timestamps_ns.t1_proxy_dispatch == t2
    assert record.breakdown_ms["routing"] == pytest.approx(4.2)
    assert record.breakdown_ms["p_queue"] == 0.0
    assert record.counts.dispatch_late_ms == pytest.approx(3.0)
    assert record.residual_share == pytest.approx(0.0, abs=1e-9)
    assert one.record().counts.dispatch_late_ms is None
    apart = _moved(one, t_source_sent_ns=t2 + 3_000_000).record(router_boot_id="host-z")
    assert apart.breakdown_ms["p_queue"] is None, "two clocks cannot say so"
    assert apart.counts.dispatch_late_ms is None
